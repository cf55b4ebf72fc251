"""Random walks through the game: mostly moves that may be made, some with one thing wrong, all from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tallystick.core.digests import Digest, Hash
from tallystick.core.errors import RuleError
from tallystick.disputes.game import voting
from tallystick.disputes.game.context import game_time
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import (
    Appeal,
    Choose,
    Concede,
    Contest,
    Convene,
    Cut,
    Descend,
    Disclose,
    Dismiss,
    Draw,
    Enlist,
    Evidence,
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
from tallystick.disputes.game.state import ELEMENT_MAX, RESULT_MAX, Dispute, Phase, Rules, State, Status, cut_places
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.ethereum.operator_trees import (
    DEEP_SIZES,
    SIZES,
    DeepTree,
    Tree,
    cut,
    operator_tree,
    root,
)
from tests.disputes.coordinators.ethereum.side import NO_NUMBER, Step

FAULTS = tuple(Fault)
KINDS = (
    *("in_dispute", "contest", "enlist", "post", "finalise", "retire", "withdraw", "unseal", "pause", "resume"),
    "anything",
)
"""What a walk chooses among."""
BISECTING = (Phase.PARTITION, Phase.CHOOSE, Phase.LEAF)


def random_rules(rng: random.Random, parties: list[str]) -> Rules:
    """Rules with short windows; some without referee, beacon or members, and with members who are parties as well."""
    members = tuple(rng.sample(parties, rng.choice([0, 1, 2, 3, 5, 7, 9, 11, 12])))
    vote_fee, size = rng.choice([0, 1, 7, 2_000]), rng.choice([1, 1, 2, 3, 3, 5, 7])
    windows = (
        *("challenge_window", "clock", "extension", "referee_window", "vote_window", "reveal_window"),
        *("appeal_window", "withdrawal_delay", "pause_max", "pause_rest"),
    )
    return Rules(
        prover_bond=rng.choice([vote_fee * size, 1_000_000, 999_983]),
        challenger_bond=rng.choice([0, 1, 150_000]),
        appeal_bond=rng.choice([0, 100_000]),
        stake=rng.choice([vote_fee, vote_fee + 1, 200_000]),
        vote_fee=vote_fee,
        reward=rng.choice([0, 1, 333, 500, 1000]),
        **{name: rng.choice([rng.randint(1, 20), rng.randint(60, 400), rng.randint(60, 400)]) for name in windows},
        ways=rng.choice([2, 3, 4, 8, 16, 31, 32]),
        committee=size,
        appeals=rng.randint(0, 4),
        members=members,
        referee=rng.choice([None, rng.choice(parties)]),
        beacon=rng.choice([None, rng.choice(parties)]),
        planter=rng.choice([None, rng.choice(parties)]),
        guardian=rng.choice([None, rng.choice(parties)]),
        treasury=rng.choice(parties),
    )


class Walk:
    """One game: its state in Python, its time, and what its parties know."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.parties = ["0x" + self.rng.randbytes(20).hex() for _ in range(12)]
        self.rules = random_rules(self.rng, self.parties)
        self.state = State(self.rules)
        self.now = 1_800_000_000
        self.moves = 0
        self._trees: dict[str, Tree] = {}
        self._votes: dict[tuple[int, int, str], tuple[Fault, str]] = {}
        self._planted: dict[int, tuple[Fault, str]] = {}

    def step(self) -> Step:
        """The next move, legal more often than not, a moment after the last one."""
        self._pass_time()
        move = next(found for found in iter(self._attempt, self) if found is not None)
        if self.rng.random() < 0.15:
            move = self._spoiled(move)
        return self._step(move)

    def step_of(self, kind: str, is_spoiled: bool) -> Step | None:
        """A move of one of `KINDS` now, if there is one to make."""
        unsettled = self._unsettled()
        if kind != "in_dispute":
            move = getattr(self, f"_{kind}")()
        else:
            move = self._in_dispute(self.rng.choice(unsettled)) if unsettled else None
        return None if move is None else self._step(self._spoiled(move) if is_spoiled else move)

    def pass_to_a_boundary(self) -> None:
        """Let time pass until a window ends, or a second before or after."""
        boundaries = [moment for moment in self._boundaries() if moment > self.now]
        if boundaries:
            self.now = max(self.now, self.rng.choice(boundaries) + self.rng.choice([-1, 0, 1]))

    def take(self, step: Step) -> str | None:
        """Make the move in Python: the code of the refusal, or `None`."""
        try:
            self.state = apply(self.state, step.move, step.now)
        except RuleError as error:
            return error.code
        self.moves += 1
        return None

    def ending(self) -> Iterator[Step]:
        """The moves by which strangers and owners bring everything to an end; they are made as they are asked for."""
        while (move := self._last_move()) is not None:
            yield self._step(move)

    # ---- time

    def _pass_time(self) -> None:
        self.now += self.rng.choice([0, 0, 0, 1, 1, 2])
        if self.rng.random() < 0.05:
            self.pass_to_a_boundary()

    def _boundaries(self) -> Iterator[int]:
        offset = self.state.pausing.total
        for claim in self.state.claims:
            yield claim.deadline + offset
        for dispute in self.state.disputes:
            yield self._end_of_phase(dispute) + offset
        yield from (credit.ripe for credits in self.state.owed.values() for credit in credits)
        yield from (member.bound_until + offset for member in self.state.members.values())
        if self.state.pausing.since is not None:
            yield self.state.pausing.since + self.rules.pause_max

    def _end_of_phase(self, dispute: Dispute) -> int:
        if dispute.phase not in BISECTING:
            return dispute.deadline
        clocks = dispute.clocks
        return clocks.since + (clocks.challenger if dispute.phase is Phase.CHOOSE else clocks.prover)

    # ---- what somebody may do

    def _attempt(self) -> Move | None:
        unsettled = self._unsettled()
        if self.state.pausing.since is not None and self.rng.random() < 0.3:
            return self._resume()
        if unsettled and self.rng.random() < (0.7 if len(unsettled) < 4 else 0.92):
            return self._in_dispute(self.rng.choice(unsettled))
        weights = {"contest": 4, "enlist": 2, "in_dispute": 0, "resume": 0}
        [kind] = self.rng.choices(KINDS, [weights.get(each, 1) for each in KINDS])
        move: Move | None = getattr(self, f"_{kind}")()
        return move

    def _post(self) -> Move:
        levels = self.rng.choice([1, 2])
        tree, actor = self._tree(), self._anybody()
        seal, statement = self.rng.randbytes(32).hex(), self._digest()
        if self.rng.random() < 0.5:
            answer, salt = self.rng.choice(FAULTS), self.rng.randbytes(32).hex()
            self._planted[len(self.state.claims)] = (answer, salt)
            seal = voting.seal(actor, answer, salt)
        value = self.rules.prover_bond
        return Post(
            actor=actor, value=value, root=root(tree), size=tree.size, levels=levels, statement=statement, seal=seal
        )

    def _contest(self) -> Move | None:
        time = game_time(self.state, self.now)
        opens = [i for i, each in enumerate(self.state.claims) if each.deadline > time and each.status is Status.OPEN]
        if not opens:
            return self._post()
        number = self.rng.choice(opens if self.rng.random() < 0.95 else range(len(self.state.claims)))
        size = self.state.claims[number].size
        low = self.rng.choice([0, self.rng.randrange(size)])
        high = self.rng.choice([size, self.rng.randint(low, size), min(size, low + 1)])
        value = self.rules.challenger_bond + self.rules.deposit
        return Contest(actor=self._anybody(), value=value, claim=number, low=low, high=high)

    def _finalise(self) -> Move | None:
        opens = [i for i, each in enumerate(self.state.claims) if each.status is Status.OPEN]
        return Finalise(actor=self._anybody(), claim=self.rng.choice(opens)) if opens else None

    def _enlist(self) -> Move | None:
        idle = [name for name in self.rules.members if not self._is_active(name)]
        return Enlist(actor=self.rng.choice(idle), value=self.rules.stake) if idle else None

    def _retire(self) -> Move | None:
        if not self.rules.members or self.rng.random() < 0.5:
            return None
        return Retire(actor=self.rng.choice(self.rules.members))

    def _withdraw(self) -> Move:
        return Withdraw(actor=self.rng.choice(list(self.state.owed) or self.parties))

    def _unseal(self) -> Move | None:
        planted = [i for i, each in enumerate(self.state.disputes) if each.claim in self._planted]
        if not planted:
            return None
        number = self.rng.choice(planted)
        answer, salt = self._planted[self.state.disputes[number].claim]
        return Unseal(actor=self.rules.planter or self._anybody(), dispute=number, answer=answer, salt=salt)

    def _pause(self) -> Move | None:
        return Pause(actor=self.rules.guardian or self._anybody()) if self.rng.random() < 0.3 else None

    def _resume(self) -> Move:
        return Resume(actor=self.rules.guardian or self._anybody())

    def _anything(self) -> Move:
        """A move of any kind inside any dispute, there or not."""
        number = self.rng.randint(0, len(self.state.disputes))
        who: dict[str, Any] = {"actor": self._anybody(), "dispute": number}
        turn = {"turn": self.rng.randint(0, 3)}
        salt = self.rng.randbytes(32).hex()
        return self.rng.choice(
            [
                Partition(**who, **turn, cuts=(Cut(leaf=salt, proof=()),), data=self._digest()),
                Choose(**who, **turn, child=self.rng.randrange(32)),
                Protest(**who, **turn),
                Reveal(**who, **turn, leaf=salt, proof=(), data=self._digest()),
                Descend(**who, **turn, leaf=salt, proof=(), root=salt, size=2**32, data=self._digest()),
                self._pinpoint(**who),
                *(act(**who) for act in (Concede, Timeout, Convene, Tally, Settle, Dismiss)),
                Rule(**who, fault=self.rng.choice(FAULTS), reason=self._digest()),
                Draw(**who, nonce=salt),
                Vote(**who, commitment=salt),
                Disclose(**who, vote=self.rng.choice(FAULTS), salt=salt),
                Appeal(**who, value=self.rng.randrange(10**6)),
                Unseal(**who, answer=self.rng.choice(FAULTS), salt=salt),
            ]
        )

    def _in_dispute(self, number: int) -> Move | None:
        dispute = self.state.disputes[number]
        if self.state.claims[dispute.claim].status is not Status.OPEN and self.rng.random() < 0.8:
            return Dismiss(actor=self._anybody(), dispute=number)
        is_over = game_time(self.state, self.now) >= self._end_of_phase(dispute)
        if self.rng.random() < (0.8 if is_over else 0.04):
            return self._closing(number, dispute)
        makers = {
            Phase.PARTITION: self._partition,
            Phase.CHOOSE: self._choose,
            Phase.LEAF: self._open,
            Phase.RULING: self._ruling,
            Phase.DRAWING: self._draw,
            Phase.COMMITTING: self._commit,
            Phase.REVEALING: self._disclose,
            Phase.APPEALABLE: self._appealable,
        }
        return makers[dispute.phase](number, dispute)

    def _partition(self, number: int, dispute: Dispute) -> Move | None:
        tree = self._trees.get(dispute.root)
        if tree is None or self.rng.random() < 0.01:
            return Concede(actor=self._prover(dispute), dispute=number)
        cuts = tuple(cut(tree, place) for place in cut_places(dispute.low, dispute.high, self.rules.ways))
        actor = self._prover(dispute)
        return Partition(actor=actor, dispute=number, turn=dispute.turn, cuts=cuts, data=self._digest())

    def _choose(self, number: int, dispute: Dispute) -> Move:
        actor, chance = dispute.challenger, self.rng.random()
        if chance < 0.02:
            return Concede(actor=actor, dispute=number)
        if chance < 0.12:
            ground = "structure" if chance < 0.07 else "budget"
            return Protest(actor=actor, dispute=number, turn=dispute.turn, ground=ground)
        return Choose(actor=actor, dispute=number, turn=dispute.turn, child=self.rng.randint(0, len(dispute.cuts)))

    def _open(self, number: int, dispute: Dispute) -> Move | None:
        tree = self._trees.get(dispute.root)
        if tree is None:
            return Concede(actor=self._prover(dispute), dispute=number)
        opened = cut(tree, dispute.low)
        who: dict[str, Any] = {"actor": self._prover(dispute), "dispute": number, "turn": dispute.turn}
        if dispute.level == 1 or self.rng.random() < 0.2:
            return Reveal(**who, leaf=opened.leaf, proof=opened.proof, data=self._digest())
        below = self._tree()
        rest: dict[str, Any] = {"root": root(below), "size": below.size, "data": self._digest()}
        return Descend(**who, leaf=opened.leaf, proof=opened.proof, **rest)

    def _pinpoint(self, actor: str, dispute: int) -> Pinpoint:
        result, element = (
            self.rng.choice((0, 1, most, self.rng.randint(0, most))) for most in (RESULT_MAX, ELEMENT_MAX)
        )
        return Pinpoint(actor=actor, dispute=dispute, result=result, element=element)

    def _ruling(self, number: int, dispute: Dispute) -> Move | None:
        if self.rng.random() < 0.2:
            return self._pinpoint(dispute.challenger, number)
        chance, tree = self.rng.random(), self._trees.get(dispute.root)
        shown = tree.evidence(dispute.low) if tree is not None else None
        if shown is not None and chance < 0.5:
            return Prove(actor=self._anybody(), dispute=number, evidence=shown)
        if self.rules.referee and chance < 0.6:
            fault = self.rng.choice(FAULTS)
            return Rule(actor=self.rules.referee, dispute=number, fault=fault, reason=self._digest())
        if chance < 0.63:
            return Concede(actor=self.rng.choice([dispute.challenger, self._prover(dispute)]), dispute=number)
        return Convene(actor=self.rules.referee or self._anybody(), dispute=number)

    def _draw(self, number: int, dispute: Dispute) -> Move:
        chance = self.rng.random()
        if chance < 0.1:
            return Timeout(actor=self._anybody(), dispute=number)
        if chance < 0.2:
            return self._pinpoint(dispute.challenger, number)
        nonce = self.rng.randbytes(32).hex()
        return Draw(actor=self.rules.beacon or self._anybody(), dispute=number, nonce=nonce)

    def _commit(self, number: int, dispute: Dispute) -> Move | None:
        if game_time(self.state, self.now) >= dispute.deadline or self.rng.random() < 0.05:
            return self._disclose(number, dispute)
        sitting = dispute.rounds[-1]
        waiting = [
            name
            for name, done in zip(sitting.drawn, sitting.commitments, strict=True)
            if not done or self.rng.random() < 0.02
        ]
        if not waiting:
            return None
        name, salt = self.rng.choice(waiting), self.rng.randbytes(32).hex()
        vote = self.rng.choice([Fault.PROVER, Fault.PROVER, Fault.CHALLENGER, Fault.NOBODY])
        found = voting.commitment(number, len(dispute.rounds) - 1, name, vote, salt)
        if self.rng.random() < 0.02:
            found = "00" * 32
        self._votes.setdefault((number, len(dispute.rounds) - 1, name), (vote, salt))
        return Vote(actor=name, dispute=number, commitment=found)

    def _disclose(self, number: int, dispute: Dispute) -> Move | None:
        sitting, this = dispute.rounds[-1], len(dispute.rounds) - 1
        known = [name for name in sitting.drawn if (number, this, name) in self._votes]
        open_ones = [n for n, v in zip(sitting.drawn, sitting.votes, strict=True) if v is None and n in known]
        chosen = open_ones if self.rng.random() < 0.9 else known
        if not chosen or self.rng.random() < 0.1:
            return Tally(actor=self._anybody(), dispute=number)
        name = self.rng.choice(chosen)
        vote, salt = self._votes[number, this, name]
        return Disclose(actor=name, dispute=number, vote=vote, salt=salt)

    def _appealable(self, number: int, dispute: Dispute) -> Move:
        if self.rng.random() < 0.2:
            return Settle(actor=self._anybody(), dispute=number)
        losers = {Fault.PROVER: self._prover(dispute), Fault.CHALLENGER: dispute.challenger}
        actor = losers.get(dispute.fault or Fault.NOBODY, self.rng.choice(list(losers.values())))
        seats = 2 * len(dispute.rounds[-1].drawn) + 1
        return Appeal(actor=actor, dispute=number, value=self.rules.appeal_bond + self.rules.vote_fee * seats)

    # ---- what somebody gets wrong

    def _spoiled(self, move: Move) -> Move:
        changes = list(self._changes(move))
        return move.model_copy(update=self.rng.choice(changes))

    def _changes(self, move: Any) -> Iterator[dict[str, Any]]:
        rng = self.rng
        yield {"actor": self._anybody()}
        if hasattr(move, "value"):
            yield {"value": max(0, move.value + rng.choice([-1, 1]))}
        if hasattr(move, "turn"):
            yield {"turn": move.turn + rng.choice([1, 2, max(-1, -move.turn)])}
        for name, count in (("dispute", len(self.state.disputes)), ("claim", len(self.state.claims))):
            if hasattr(move, name):
                yield {name: rng.randint(0, count)}
                yield {name: count + rng.randint(0, 2)}
        for name in ("leaf", "salt", "commitment", "nonce", "root"):
            if hasattr(move, name):
                yield {name: rng.randbytes(32).hex()}
        if hasattr(move, "proof"):
            yield {"proof": _bent(rng, move.proof)}
        if isinstance(move, Partition):
            yield {"cuts": move.cuts[:-1] or move.cuts * 2}
            place = rng.randrange(len(move.cuts))
            spoiled = move.cuts[place].model_copy(update={"proof": _bent(rng, move.cuts[place].proof)})
            yield {"cuts": (*move.cuts[:place], spoiled, *move.cuts[place + 1 :])}
            yield {"cuts": tuple(reversed(move.cuts))}
        if isinstance(move, Choose):
            yield {"child": rng.randrange(32)}
        if isinstance(move, Contest):
            yield {"low": rng.randint(0, 70), "high": rng.randint(0, 70)}
        if isinstance(move, Prove):
            yield {"evidence": _bent_evidence(rng, move.evidence)}

    # ---- the end of everything

    def _last_move(self) -> Move | None:
        """The next move that anybody needs to make until no money is left, with the clock set to when it is due."""
        since = self.state.pausing.since
        if since is not None:
            self.now = max(self.now, since + self.rules.pause_max)
        offset = self.now - game_time(self.state, self.now)
        stranger = self.parties[0]
        for number, dispute in enumerate(self.state.disputes):
            if dispute.phase is not Phase.SETTLED:
                extra = self.rules.reveal_window if dispute.phase is Phase.COMMITTING else 0
                self.now = max(self.now, self._end_of_phase(dispute) + extra + offset)
                return self._closing(number, dispute)
        for number, claim in enumerate(self.state.claims):
            if claim.status is Status.OPEN:
                self.now = max(self.now, claim.deadline + offset)
                return Finalise(actor=stranger, claim=number)
        for name, member in self.state.members.items():
            if member.stake:
                self.now = max(self.now, member.bound_until + offset)
                return Retire(actor=name)
        for name, credits in self.state.owed.items():
            self.now = max(self.now, credits[0].ripe)
            return Withdraw(actor=name)
        return None

    def _closing(self, number: int, dispute: Dispute) -> Move:
        """The move by which anybody ends a phase whose time is over."""
        who: dict[str, Any] = {"actor": self.parties[0], "dispute": number}
        if self.state.claims[dispute.claim].status is not Status.OPEN:
            return Dismiss(**who)
        makers = {Phase.RULING: Convene, Phase.COMMITTING: Tally, Phase.REVEALING: Tally, Phase.APPEALABLE: Settle}
        return makers.get(dispute.phase, Timeout)(**who)

    # ---- small things

    def _step(self, move: Any) -> Step:
        """The move now, and the claim and dispute that it is about; new ones have the next number."""
        state = self.state
        if move.kind == "contest":
            return Step(move, self.now, move.claim, len(state.disputes))
        if move.kind in ("post", "finalise"):
            return Step(move, self.now, len(state.claims) if move.kind == "post" else move.claim)
        number = getattr(move, "dispute", NO_NUMBER)
        claim = state.disputes[number].claim if number < len(state.disputes) else NO_NUMBER
        return Step(move, self.now, claim, number)

    def _tree(self) -> Tree:
        if self.rng.random() < 0.1:
            tree: Tree = DeepTree(self.rng.choice(DEEP_SIZES), Hash(self.rng.randbytes(32)))
        else:
            tree = operator_tree(self.rng, self.rng.choice(SIZES))
        self._trees[root(tree)] = tree
        return tree

    def _prover(self, dispute: Dispute) -> str:
        return self.state.claims[dispute.claim].prover

    def _unsettled(self) -> list[int]:
        return [i for i, each in enumerate(self.state.disputes) if each.phase is not Phase.SETTLED]

    def _is_active(self, name: str) -> bool:
        member = self.state.members.get(name)
        return member is not None and member.stake > 0

    def _anybody(self) -> str:
        return self.rng.choice(self.parties)

    def _digest(self) -> Digest:
        return Digest("sha256:" + self.rng.randbytes(32).hex())


def _bent(rng: random.Random, proof: tuple[str, ...]) -> tuple[str, ...]:
    """A proof with one hash more, one less, or another one."""
    other = rng.randbytes(32).hex()
    place = rng.randint(0, len(proof))
    return rng.choice([(*proof, other)[:64], proof[:-1], (*proof[:place], other, *proof[place + 1 :])[: len(proof)]])


def _bent_evidence(rng: random.Random, evidence: Evidence) -> Evidence:
    record = evidence.record
    changes: list[dict[str, Any]] = [
        {"element": evidence.element + 1},
        {"ground": rng.choice(["edge", "cast", "product"])},
        {"tensors": evidence.tensors[:-1]},
        {"tensors": tuple(reversed(evidence.tensors))},
        {"record": record.model_copy(update={"node": record.node + 1})},
        {"record": record.model_copy(update={"inputs": record.inputs[::-1]})},
        {"record": record.model_copy(update={"inputs": (*record.inputs, *record.inputs)})},
        {"record": record.model_copy(update={"outputs": (('a"b', record.outputs[0][1]),)})},
        {"record": record.model_copy(update={"operator": "aten.add.Tensor_2"})},
    ]
    if evidence.writer is not None:
        changes.append({"writer": evidence.writer.model_copy(update={"index": evidence.writer.index + 1})})
    return evidence.model_copy(update=rng.choice(changes))
