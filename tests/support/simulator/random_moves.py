"""Moves that nobody should make: of any kind, by anybody who is not honest, at the worst moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from tallystick.disputes.game.moves import (
    Appeal,
    Choose,
    Concede,
    Contest,
    Convene,
    Descend,
    Disclose,
    Dismiss,
    Draw,
    Enlist,
    Finalise,
    Move,
    Partition,
    Pause,
    Pinpoint,
    Post,
    Protest,
    Prove,
    Resume,
    Retire,
    Reveal,
    Rule,
    Settle,
    Tally,
    Timeout,
    Unseal,
    Vote,
    Withdraw,
)
from tallystick.disputes.game.state import Dispute, Phase, State, cut_places
from tallystick.verdicts.verdict import Fault
from tests.support.simulator.trees import ELEMENTS, FORGED, NOTHING, Tree, Truth

BISECTION: Final = ("partition", "choose", "protest", "descend", "reveal")
DUE: Final = ("timeout", "convene", "draw", "tally", "settle", "dismiss", "finalise")
OFFICIAL: Final = (
    *("rule", "prove", "pinpoint", "vote", "disclose", "appeal", "unseal", "concede", "pause", "resume"),
)
MONEY: Final = ("post", "contest", "enlist", "retire", "withdraw")
KINDS: Final = 3 * BISECTION + 4 * DUE + 2 * OFFICIAL + MONEY + 3 * ("contest",)


class RandomMover:
    """Makes up moves about a state; `names` are those that it can sign for."""

    def __init__(self, chance: Random, truth: Truth, names: Sequence[str]) -> None:
        self.chance, self.truth, self.names = chance, truth, names

    def move(self, state: State) -> Move:
        """One move."""
        chance = self.chance
        kind, number = chance.choice(KINDS), chance.randrange(len(state.disputes) + 1)
        if state.disputes and chance.random() < 0.9:
            number = chance.randrange(len(state.disputes))
        dispute = state.disputes[number] if number < len(state.disputes) else None
        actor = self._actor(state, dispute)
        if kind in BISECTION:
            return self._bisecting(kind, actor, number, dispute, state)
        if kind in DUE or kind in OFFICIAL:
            return self._about_dispute(kind, actor, number, state)
        return self._about_money(kind, actor, state)

    def _actor(self, state: State, dispute: Dispute | None) -> str:
        """Somebody of those involved, if it is one of its own names, else any of these."""
        chance = self.chance
        if dispute is not None and chance.random() < 0.7:
            drawn = dispute.rounds[-1].drawn if dispute.rounds else ()
            involved = [dispute.challenger, state.claims[dispute.claim].prover, *drawn]
            own = [each for each in involved if each in self.names]
            if own:
                return chance.choice(own)
        return chance.choice(self.names)

    def _bisecting(self, kind: str, actor: str, number: int, dispute: Dispute | None, state: State) -> Move:
        chance = self.chance
        turn = max(0, (dispute.turn if dispute else 0) + chance.choice((0, 0, 0, 0, -1, 1)))
        who: dict[str, Any] = {"actor": actor, "dispute": number, "turn": turn}
        if kind == "choose":
            return Choose(**who, child=chance.randrange(state.rules.ways))
        if kind == "protest":
            return Protest(**who, ground=chance.choice(("structure", "budget")))
        tree = self.truth.tree_of(dispute) if dispute else None
        if kind == "partition":
            places = cut_places(dispute.low, dispute.high, state.rules.ways) if dispute else ()
            cuts = [self._cut(tree, each) for each in places][: chance.choice((31, 31, 31, 1))]
            return Partition(**who, cuts=tuple(cuts) or (FORGED,), data=NOTHING)
        cut = self._cut(tree, dispute.low if dispute else 0)
        opened = {**who, "leaf": cut.leaf, "proof": cut.proof, "data": NOTHING}
        return Reveal(**opened) if kind == "reveal" else Descend(**opened, root="ef" * 32, size=chance.choice((1, 9)))

    def _cut(self, tree: Tree | None, place: int) -> Any:
        if tree is None or place >= tree.size or self.chance.random() < 0.1:
            return FORGED
        return tree.cut(self.chance.randrange(tree.size) if self.chance.random() < 0.1 else place)

    def _about_dispute(self, kind: str, actor: str, number: int, state: State) -> Move:
        chance = self.chance
        who: dict[str, Any] = {"actor": actor, "dispute": number}
        word = f"{chance.getrandbits(256):064x}"
        if kind in ("pause", "resume"):
            return Pause(actor=actor) if kind == "pause" else Resume(actor=actor)
        if kind == "finalise":
            return Finalise(actor=actor, claim=chance.randrange(len(state.claims) + 1))
        plain: dict[str, Callable[..., Move]] = {
            "timeout": Timeout,
            "convene": Convene,
            "tally": Tally,
            "settle": Settle,
            "dismiss": Dismiss,
            "concede": Concede,
        }
        if kind in plain:
            return plain[kind](**who)
        if kind == "draw":
            return Draw(**who, nonce=word)
        if kind == "vote":
            return Vote(**who, commitment=word)
        if kind == "pinpoint":
            return Pinpoint(**who, result=chance.randrange(2), element=chance.randrange(2 * ELEMENTS))
        if kind in ("disclose", "unseal"):
            answer = chance.choice(tuple(Fault))
            shown = {**who, "salt": word}
            return Disclose(**shown, vote=answer) if kind == "disclose" else Unseal(**shown, answer=answer)
        if kind == "rule":
            return Rule(**who, fault=chance.choice(tuple(Fault)), reason=NOTHING)
        return self._appeal_or_proof(kind, who, state)

    def _appeal_or_proof(self, kind: str, who: dict[str, Any], state: State) -> Move:
        number = who["dispute"]
        dispute = state.disputes[number] if number < len(state.disputes) else None
        if kind == "appeal":
            rules, drawn = state.rules, len(dispute.rounds[-1].drawn) if dispute and dispute.rounds else 1
            price = rules.appeal_bond + rules.vote_fee * (2 * drawn + 1)
            return Appeal(**who, value=price - self._short(price))
        tree = self.truth.tree_of(dispute) if dispute else None
        if dispute is None or tree is None or not dispute.low < tree.size or not dispute.low:
            return Concede(**who)
        return Prove(**who, evidence=tree.evidence(dispute.low))

    def _about_money(self, kind: str, actor: str, state: State) -> Move:
        chance, rules = self.chance, state.rules
        if kind == "post" and chance.random() < 0.3:
            root = f"{chance.getrandbits(256):064x}"
            value = rules.prover_bond - self._short(rules.prover_bond)
            return Post(actor=actor, value=value, root=root, size=3, statement=NOTHING, seal=root)
        if kind == "contest":
            low = chance.randrange(4)
            value = rules.challenger_bond + rules.deposit
            claim = chance.randrange(len(state.claims) + (chance.random() < 0.1 or not state.claims))
            owner = state.claims[claim].prover if claim < len(state.claims) else actor
            actor = owner if owner in self.names and chance.random() < 0.2 else actor
            said: dict[str, Any] = {
                "low": low,
                "high": low + chance.choice((0, 1, 1, 1, 2)),
                "value": value - self._short(value),
            }
            return Contest(actor=actor, claim=claim, **said)
        if kind == "enlist":
            return Enlist(actor=actor, value=rules.stake - self._short(rules.stake))
        return Retire(actor=actor) if kind == "retire" else Withdraw(actor=actor)

    def _short(self, price: int) -> int:
        return 1 if price and self.chance.random() < 0.2 else 0


def seconds_to_due(state: State, dispute: Dispute, time: int) -> int:
    """Until something of a dispute runs out."""
    if dispute.phase in (Phase.CHOOSE, Phase.PARTITION, Phase.LEAF):
        clocks = dispute.clocks
        left = clocks.challenger if dispute.phase is Phase.CHOOSE else clocks.prover
        return clocks.since + left - time
    return dispute.deadline - time
