"""Balances: the operator's grants to a party, less the payments of its moves, plus its withdrawals."""

from __future__ import annotations

import sqlalchemy as sa

from tallystick.disputes.coordinators.local.database import GRANTS, CoordinatorDatabase
from tallystick.disputes.game.rules import MONEY_MAX
from tallystick.errors import UsageError


class Balances:
    """The grants in one database."""

    def __init__(self, database: CoordinatorDatabase) -> None:
        self._database = database

    def granted(self, connection: sa.Connection, party: str) -> int:
        """The sum of a party's grants, less what was paid out to it in real money."""
        total = sa.select(sa.func.coalesce(sa.func.sum(GRANTS.c.amount), 0)).where(GRANTS.c.party == party)
        return int(connection.execute(total).scalar_one())

    def is_known(self, connection: sa.Connection, party: str) -> bool:
        """Whether a party was ever granted anything."""
        return connection.execute(sa.select(GRANTS.c.number).where(GRANTS.c.party == party)).first() is not None

    def grant(self, connection: sa.Connection, party: str, amount: int, now: int, spent: int) -> int:
        """Write one grant; a negative one pays out. Returns the money in the purse then.

        Raises `UsageError` if the purse would be below zero, or the sum of grants above `MONEY_MAX`.
        """
        total = self.granted(connection, party) + amount
        if total < spent or total > MONEY_MAX:
            raise UsageError(f"grant {amount}: the purse of {party[:10]}… would hold {total - spent}")
        last = connection.execute(sa.select(sa.func.max(GRANTS.c.number))).scalar_one()
        number = 0 if last is None else last + 1
        connection.execute(sa.insert(GRANTS).values(number=number, time=now, party=party, amount=amount))
        return total - spent

    def parties(self) -> list[str]:
        """All parties that were ever granted anything."""
        with self._database.reading() as connection:
            return sorted(connection.execute(sa.select(GRANTS.c.party).distinct()).scalars())
