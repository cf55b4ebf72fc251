"""What `tally db add` reads of traces, receipts, reports and disputes, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.policy import Policy
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.database.indexing import audits
from tallystick.database.indexing.add import add_place
from tallystick.database.indexing.audits import add_audit
from tallystick.database.query import DatabaseQueries
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.tally.auditing import audit
from tests.database.indexing.test_runs import content
from tests.disputes.coordinators.conformance import Play, usual_rules
from tests.disputes.coordinators.local.keys import key_of, party_of, set_up
from tests.support.traces import ONE, TWO, kernel, reduction, trace_at

RECEIPTS = [case["text"] for case in json.loads(Path("vectors/receipt/signed.json").read_text())]


@pytest.fixture(scope="session")
def report(honest: Path) -> Mapping[str, Any]:
    """The report of an audit of one step."""
    return audit(honest, Policy(samples=1), nonce="00" * 32).to_json()


class TestTraces:
    EVENTS = (kernel(5, 10, operator=3, step=1, memory=900), reduction(ONE, 20, 5), reduction(TWO, 20, 9))

    def test_events_and_devices_are_read(self, empty: WorkloadDatabase, tmp_path: Path) -> None:
        folder = trace_at(tmp_path / "first", self.EVENTS, began=7)
        assert add_place(empty, folder.path) == "first"
        found = DatabaseQueries(empty)
        trace = found.traces.one()
        assert (trace.digest, trace.events, trace.began_ns) == (folder.statement().identity, 3, 7000)
        assert (trace.start_ns, trace.end_ns) == (5, 29)
        assert [(event.kind, event.device, event.start_ns) for event in found.events] == [
            ("kernel", ONE, 5),
            ("collective", ONE, 20),
            ("collective", TWO, 20),
        ]
        assert [event.members for event in found.events.where(device=TWO)] == [f"{ONE} {TWO}"]
        assert [event.number for event in found.events.between(0, 20)] == [0]
        assert found.devices.where(name=ONE).one().operations_per_second == 10**10
        assert [device.name for device in found.traces.devices.where(kind="switch")] == ["rack"]
        assert [(link.one, link.other) for link in found.links] == [("node1", "rack"), ("node2", "rack")]

    def test_a_trace_in_a_run_belongs_to_the_run(self, empty: WorkloadDatabase, run: Path) -> None:
        trace_at(run / "traces" / "first", self.EVENTS)
        name = add_place(empty, run)
        assert [trace.name for trace in DatabaseQueries(empty).runs.traces] == [f"{name}/first"]
        before = content(empty)
        add_place(empty, run)
        assert content(empty) == before

    def test_changed_events_leave_nothing(self, empty: WorkloadDatabase, tmp_path: Path) -> None:
        folder = trace_at(tmp_path / "first", self.EVENTS)
        folder.events_path.write_bytes(folder.events_path.read_bytes().replace(b'"start":5', b'"start":6'))
        before = content(empty)
        with pytest.raises(ProofError):
            add_place(empty, folder.path)
        assert content(empty) == before

    def test_another_trace_at_the_same_place_is_refused(self, empty: WorkloadDatabase, tmp_path: Path) -> None:
        add_place(empty, trace_at(tmp_path / "first", self.EVENTS).path)
        shutil.rmtree(tmp_path / "first")
        with pytest.raises(MalformedError, match="another trace than the one in the database"):
            add_place(empty, trace_at(tmp_path / "first", self.EVENTS[:1]).path)


class TestAudits:
    def test_a_report_belongs_to_the_run_with_its_claim(
        self, empty: WorkloadDatabase, honest: Path, report: Mapping[str, Any], tmp_path: Path
    ) -> None:
        name = add_place(empty, honest)
        file = tmp_path / "report.json"
        file.write_text(json.dumps(report))
        digest = add_place(empty, file)
        assert add_audit(empty, report) == digest
        found = DatabaseQueries(empty)
        row = found.audits.one()
        assert (row.run, row.outcome, row.kind, row.replayed_steps) == (
            name,
            "accepted",
            "training",
            report["replayed_steps"],
        )
        assert found.findings.count() == len(report["findings"])
        (segment,) = found.runs.audited_segments
        (replayed,) = report["segments"]
        assert (segment.first_step, segment.last_step, segment.outcome) == (
            replayed["from"] + 1,
            replayed["to"],
            "agrees",
        )

    def test_a_report_of_one_of_two_runs_with_one_claim(
        self, empty: WorkloadDatabase, honest: Path, report: Mapping[str, Any], tmp_path: Path
    ) -> None:
        copy = shutil.copytree(honest, tmp_path / "copy")
        for place in (honest, copy):
            add_place(empty, place)
        add_audit(empty, report)
        assert DatabaseQueries(empty).audits.one().run is None
        add_audit(empty, {**report, "date": "another"}, run=copy)
        assert DatabaseQueries(empty).audits.newest_first().first(1).one().run == "copy"

    def test_an_opening_that_was_rejected_may_be_anybodys(
        self, empty: WorkloadDatabase, honest: Path, report: Mapping[str, Any]
    ) -> None:
        add_place(empty, honest)
        judged = {"verdict": "accepted", "findings": [], "operators": [], "claim": report["claim"]}
        add_audit(empty, judged)
        add_audit(empty, {**judged, "verdict": "rejected"})
        rows = [(row.kind, row.run, row.claim) for row in DatabaseQueries(empty).audits]
        assert rows == [("operators", honest.name, report["claim"]), ("operators", None, None)]

    def test_a_copied_claim_gets_no_verdict(
        self, empty: WorkloadDatabase, run: Path, honest: Path, report: Mapping[str, Any]
    ) -> None:
        records = run / "transcript.jsonl"
        records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:-1]))
        add_place(empty, run, "forged", tensors=False)
        add_audit(empty, report)
        assert DatabaseQueries(empty).audits.one().run is None
        add_place(empty, honest, "honest", tensors=False)
        add_audit(empty, {**report, "date": "another"})
        assert DatabaseQueries(empty).audits.newest_first().first(1).one().run == "honest"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("verdict", "<b>"),
            ("sentence", {}),
            ("claim", []),
            ("steps", "many"),
            ("steps", 2**53),
            ("date", 1),
            ("policy", {"mode": []}),
            ("segments", [{}]),
            ("segments", [{"from": "x", "to": 1}]),
            ("segments", [{"from": 0, "to": 1, "state": []}]),
            ("segments", [{"from": 0, "to": 1, "seconds": {}}]),
            ("findings", [1]),
            ("findings", [{"check": {}}]),
            ("findings", [{"detail": []}]),
            ("findings", [{"distance": "far"}]),
            ("reports", [{"receipt": "r"}]),
            ("reports", [{"receipt": {}, "verdict": "accepted"}]),
        ],
    )
    def test_a_field_of_another_type_is_refused(self, empty: WorkloadDatabase, field: str, value: Any) -> None:
        good = {"verdict": "accepted", "findings": [{"where": f"step {'9' * 5000}", "distance": "nan"}], "steps": 1}
        with pytest.raises(MalformedError, match=field):
            add_audit(empty, {**good, field: value})
        assert add_audit(empty, good)
        assert DatabaseQueries(empty).findings.one().step is None

    def test_what_is_no_report_is_refused(self, empty: WorkloadDatabase, tmp_path: Path) -> None:
        file = tmp_path / "report.json"
        for text, why in (
            ("[]", "no report"),
            ('{"verdict":"accepted"}', "no verdict and findings"),
            ("{", "no valid JSON"),
        ):
            file.write_text(text)
            with pytest.raises(MalformedError, match=why):
                add_place(empty, file)


class TestReceipts:
    def test_a_stream_is_read_and_read_on(self, empty: WorkloadDatabase, tmp_path: Path) -> None:
        file = tmp_path / "provider" / "receipts.jsonl"
        file.parent.mkdir()
        file.write_text("".join(f"{text}\n" for text in RECEIPTS[:1]) + RECEIPTS[1][:20])
        assert add_place(empty, file.parent) == "provider"
        assert DatabaseQueries(empty).receipts.count() == 1
        file.write_text("".join(f"{text}\n" for text in RECEIPTS))
        add_place(empty, file.parent)
        found = DatabaseQueries(empty)
        assert found.about("streams").one().receipts == len(RECEIPTS)
        assert [row.request for row in found.receipts] == [
            json.loads(text)["receipt"]["request"]["id"] for text in RECEIPTS
        ]
        assert {row.verdict for row in found.receipts} == {None}

    def test_what_is_written_while_it_is_read_waits_for_the_next_reading(
        self, empty: WorkloadDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "provider" / "receipts.jsonl"
        file.parent.mkdir()
        file.write_text(f"{RECEIPTS[0]}\n")
        write = audits._write

        def grows(*given: Any) -> None:
            with file.open("a") as more:
                more.write(f"{RECEIPTS[1]}\n")
            write(*given)

        monkeypatch.setattr(audits, "_write", grows)
        for count in (1, 2):
            add_place(empty, file.parent)
            assert DatabaseQueries(empty).receipts.count() == count

    def test_the_last_verdict_is_shown(self, empty: WorkloadDatabase, tmp_path: Path) -> None:
        file = tmp_path / "receipts.jsonl"
        file.write_text(f"{RECEIPTS[0]}\n")
        add_place(empty, file)
        digest = DatabaseQueries(empty).receipts.one().digest
        for outcome in ("inconclusive", "accepted"):
            add_audit(empty, {"verdict": outcome, "findings": [], "receipt": digest})
        assert DatabaseQueries(empty).receipts.one().verdict == "accepted"

    def test_a_receipt_that_was_exchanged_is_refused(self, empty: WorkloadDatabase, tmp_path: Path) -> None:
        file = tmp_path / "receipts.jsonl"
        file.write_text(f"{RECEIPTS[0]}\n")
        add_place(empty, file)
        file.write_text(f"{RECEIPTS[1]}\n")
        with pytest.raises(MalformedError, match="other receipts than in the database"):
            add_place(empty, file)


def test_disputes_are_read_and_read_on(empty: WorkloadDatabase, tmp_path: Path) -> None:
    world = set_up(tmp_path / "court.db", usual_rules(party_of))
    key_of("coordinator").write(tmp_path / "court.db.key")
    with closing(world.place):
        game = Play(world)
        game.post()
        game.contest()
        assert add_place(empty, tmp_path / "court.db") == "court"
        found = DatabaseQueries(empty)
        assert [(row.name, row.phase, row.moves) for row in found.disputes] == [("court/0", "partition", 1)]
        game.partition()
    add_place(empty, tmp_path / "court.db")
    dispute = found.disputes.one()
    assert (dispute.phase, dispute.moves) == ("choose", 2)
    assert [(move.role, move.kind) for move in found.disputes.moves] == [
        ("challenger", "contest"),
        ("prover", "partition"),
    ]


def test_what_is_nothing_of_ours_is_refused(empty: WorkloadDatabase, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="not there"):
        add_place(empty, tmp_path / "nothing")


def test_two_places_of_one_name_are_refused(empty: WorkloadDatabase, tmp_path: Path) -> None:
    one, other = (trace_at(tmp_path / folder / "t", TestTraces.EVENTS).path for folder in "ab")
    add_place(empty, one)
    with pytest.raises(UsageError, match=r"give .* another name with --name"):
        add_place(empty, other)
    assert add_place(empty, other, "u") == "u"
