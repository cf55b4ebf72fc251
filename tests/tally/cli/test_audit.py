"""`tally audit` and `tally verify-segment` as somebody at a terminal meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tallystick import __version__
from tallystick.formats.store.run import RunDirectory
from tests.tally.cli.programs import running

Tally = Callable[..., Any]
NONCE = "07" * 32
OTHER = "sha256:" + "0" * 64


def test_an_honest_run_exits_with_0_and_the_report_says_how_to_repeat_it(tally: Tally, honest: Path) -> None:
    told = tally("audit", honest, "--samples", 2, "--nonce", NONCE)
    assert told.code == 0
    assert told.out.startswith("ACCEPTED")
    assert f"--nonce {NONCE}" in told.out
    assert "not checked:" in told.out


def test_a_nonce_is_drawn_afresh_and_printed(tally: Tally, honest: Path) -> None:
    drawn = {json.loads(tally("audit", honest, "--samples", 1, "--json").out)["nonce"] for _ in range(2)}
    assert len(drawn) == 2


def test_json_is_the_only_thing_on_stdout(tally: Tally, honest: Path) -> None:
    told = tally("audit", honest, "--full", "--json")
    report = json.loads(told.out)
    assert (told.code, report["verdict"], report["replayed_steps"]) == (0, "accepted", 12)
    assert [(s["trajectory"], s["state"]) for s in report["segments"]] == [("agrees", "agrees")] * 3


def test_an_edited_record_exits_with_1_and_says_why(tally: Tally, run: Path) -> None:
    path = run / "transcript.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"split":"train"', b'"split":"validation"', 1))
    told = tally("audit", run)
    assert told.code == 1
    assert told.out.startswith("REJECTED")
    assert "step 1 consumed other examples" in " ".join(told.out.split())


def test_another_claim_than_the_expected_one_exits_with_1(tally: Tally, honest: Path) -> None:
    assert tally("audit", honest, "--samples", 1, "--claim", RunDirectory(honest).claim().identity).code == 0
    assert tally("audit", honest, "--samples", 1, "--claim", OTHER).code == 1


def test_a_window_that_is_too_short_exits_with_3(tally: Tally, honest: Path) -> None:
    told = tally("audit", honest, "--window", 1, "--samples", 12)
    assert told.code == 3
    assert told.out.startswith("INCONCLUSIVE")
    assert "out of reach" in told.out


def test_a_policy_file_decides_and_an_option_overrides_it(tally: Tally, honest: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("samples = 3\n")
    assert len(json.loads(tally("audit", honest, "--policy", policy, "--json").out)["sampled"]) == 3
    told = tally("audit", honest, "--policy", policy, "--samples", 5, "--json")
    assert len(json.loads(told.out)["sampled"]) == 5


def test_a_policy_names_what_states_are_compared_by(tally: Tally, honest: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('mode = "tolerant"\ntolerance = "bucket"\n')
    told = tally("audit", honest, "--policy", policy, "--full", "--verbose")
    assert (told.code, "state bucket" in told.out, "weights residual" in told.out) == (0, True, False)
    policy.write_text('mode = "tolerant"\ntolerance = "buckets"\n')
    told = tally("audit", honest, "--policy", policy)
    assert (told.code, told.complaint) == (2, "tally: no such tolerance buckets: did you mean bucket?")


@pytest.mark.parametrize(
    "text", ["samples = 0", "colour = 1", "samples = ", "samples = nan", "window = 2020-01-01", "\x00", "[[mode]]"]
)
def test_a_bad_policy_is_refused_by_name(tally: Tally, honest: Path, tmp_path: Path, text: str) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(text)
    told = tally("audit", honest, "--policy", policy)
    assert (told.code, told.out) == (4, "")
    assert "policy.toml" in told.complaint


def test_a_page_is_written_that_fetches_nothing(tally: Tally, honest: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    told = tally("audit", honest, "--samples", 1, "--html", page)
    assert f"the report is in {page}" in told.err
    assert told.code == 0
    html = page.read_text()
    assert "Accepted" in html
    for link in ("http://", "https://", "<script", "src='", 'src="/', "@import", "url("):
        assert link not in html
    assert "default-src 'none'" in html  # whatever a run's text may hold, a browser loads nothing


def test_a_person_can_put_what_a_separate_program_prints_into_a_report(honest: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with running(tmp_path / "programs") as programs:
        told = programs.tell("audit", honest, "--samples", 1, "--nonce", NONCE, "--html", page).splitlines()
    claim = RunDirectory(honest).claim().identity
    assert told[0] == (
        "ACCEPTED  4 of 12 steps were replayed from the recipe, and all agreed bit for bit. "
        "1 of them was drawn at random, too few to say anything about the other 8."
    )
    assert told[1].startswith(f"claim {claim}")
    assert sum(line.startswith("not checked: ") for line in told) <= 4
    assert [line for line in told if " checks passed (" in line]
    assert [line for line in told if " start-up, " in line and " reading and checking, " in line and " replay" in line]
    repeat = told[-1].removeprefix("repeat: ")
    assert repeat == f"tally audit {honest} --samples 1 --nonce {NONCE}"
    html = unescape(page.read_text())
    for named in (told[0].partition("  ")[2], claim, NONCE, repeat, " UTC</td>", "llama (", "records of text", "torch"):
        assert named in html
    assert "Red, with a bar on the left" in html
    assert "Shaded: steps that were not replayed" in html
    assert "prefers-color-scheme: dark" in html
    assert html.count('<svg class="chart"') == 2  # the losses, and their distances
    for name in ("recorded", "replayed, segment agrees", "distance", "limit", "sampled step", "anchor", "not replayed"):
        assert f"</span>{name}</li>" in html


def test_the_report_as_json_says_when_with_what_and_on_which_stacks(tally: Tally, honest: Path) -> None:
    report = json.loads(tally("audit", honest, "--samples", 6, "--nonce", NONCE, "--json").out)
    assert datetime.fromisoformat(report["date"]).utcoffset() == timedelta(0)
    assert report["tallystick"] == __version__
    assert report["command"].endswith(f"--samples 6 --nonce {NONCE}")
    assert report["stacks"]["claimed"] == report["stacks"]["ours"]
    assert report["coverage"]["drawn"] == 6
    assert report["excluded"]["confidence"] == 0.95
    assert report["policy"]["samples"] == 6
    assert {"startup_seconds", "reading_seconds", "replay_seconds"} <= report.keys()
    assert ("llama" in report["model"], "records of text" in report["data"]) == (True, True)


def test_text_of_the_prover_is_escaped_in_the_page_and_printed_as_it_is(
    tally: Tally, run: Path, tmp_path: Path
) -> None:
    spec = json.loads((run / "spec.json").read_bytes())
    hostile = "[bold]<script>alert(1)</script>[/nonsense]"
    path = run / "environment.json"
    from tallystick.core.canonical_json import encode

    assert spec
    path.write_bytes(encode(json.loads(path.read_bytes()) | {"cpu": hostile}))
    page = tmp_path / "report.html"
    told = tally("audit", run, "--html", page)
    assert told.code == 1
    assert "<script>alert" not in page.read_text()


def test_hostile_text_in_a_difference_of_stacks_does_not_break_the_terminal(
    tally: Tally, run: Path, rewrite: Callable[..., None], tmp_path: Path
) -> None:
    from tallystick.core.canonical_json import encode

    path = run / "environment.json"
    hostile = "[/bold][link=x]<b>\x1b[2J\n[/nonsense]"
    path.write_bytes(encode(json.loads(path.read_bytes()) | {"cpu": hostile}))
    identity = RunDirectory(run).environment().digest_as("environment")
    rewrite(run, lambda records: records[0].update(environment=identity))
    claim = json.loads((run / "claim.json").read_bytes())
    (run / "claim.json").write_bytes(encode(claim | {"environment": identity}))
    told = tally("audit", run, "--html", tmp_path / "report.html")
    assert told.code == 3
    assert "\x1b[2J" not in told.out
    assert "<b>" not in (tmp_path / "report.html").read_text()


def test_a_page_that_cannot_be_written_exits_with_4(tally: Tally, honest: Path, tmp_path: Path) -> None:
    told = tally("audit", honest, "--samples", 1, "--html", tmp_path / "no" / "report.html")
    assert told.code == 4
    assert told.complaint.endswith("no: no such folder")


def test_an_unknown_device_is_refused(tally: Tally, honest: Path) -> None:
    told = tally("audit", honest, "--device", "abacus")
    assert told.code == 2
    assert "cpu or cuda" in told.complaint


def test_a_segment_is_replayed_between_its_anchors(tally: Tally, honest: Path) -> None:
    told = tally("verify-segment", honest, "--from", 4, "--to", 8, "--json")
    report = json.loads(told.out)
    assert (told.code, report["verdict"]) == (0, "accepted")
    assert [(s["from"], s["to"], s["state_compared"]) for s in report["segments"]] == [(4, 8, "whole state")]


def test_a_segment_that_starts_at_no_anchor_exits_with_2_and_names_the_anchors(tally: Tally, honest: Path) -> None:
    told = tally("verify-segment", honest, "--from", 3, "--to", 8)
    assert told.code == 2
    assert "0, 4, 8, 12" in told.complaint


def test_a_segment_of_another_claim_exits_with_1(tally: Tally, honest: Path) -> None:
    assert tally("verify-segment", honest, "--from", 0, "--to", 4, "--claim", OTHER).code == 1


def append(tail: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes() + tail)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def remove(path: Path) -> None:
    path.unlink()


REJECTED, INCONCLUSIVE = (1, "REJECTED"), (3, "INCONCLUSIVE")
DAMAGES: dict[str, tuple[str, Callable[[Path], object], tuple[int, str]]] = {
    "a truncated record": ("transcript.jsonl", append(b'{"kind":"step","ind'), REJECTED),
    "a record with NaN": ("transcript.jsonl", append(b'{"index":1,"kind":"failed","error":NaN}\n'), REJECTED),
    "a record of an unknown kind": ("transcript.jsonl", append(b'{"kind":"miracle"}\n'), REJECTED),
    "a record of absurd size": ("transcript.jsonl", append(b'{"error":"' + b"x" * (2 << 20) + b'"}\n'), REJECTED),
    "a transcript cut short": ("transcript.jsonl", cut, REJECTED),
    "no transcript": ("transcript.jsonl", remove, INCONCLUSIVE),
    "a timeline without an end": ("trace.jsonl", append(b'{"step":'), REJECTED),
    "no timeline": ("trace.jsonl", remove, INCONCLUSIVE),
    "an anchor cut short": ("anchors/step_00000004.safetensors", cut, REJECTED),
    "no anchor": ("anchors/step_00000004.safetensors", remove, INCONCLUSIVE),
    "no first anchor": ("anchors/step_00000000.safetensors", remove, INCONCLUSIVE),
    "data cut short": ("data/tokens.bin", cut, REJECTED),
    "no data": ("data/tokens.bin", remove, INCONCLUSIVE),
    "something behind the claim": ("claim.json", append(b"{}"), INCONCLUSIVE),
    "no claim": ("claim.json", remove, INCONCLUSIVE),
    "something behind the spec": ("spec.json", append(b" "), REJECTED),
    "no spec": ("spec.json", remove, INCONCLUSIVE),
    "no environment": ("environment.json", remove, INCONCLUSIVE),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_a_verdict_with_a_report_that_names_the_file(
    tally: Tally, run: Path, tmp_path: Path, name: str
) -> None:
    file, damage, (code, word) = DAMAGES[name]
    damage(run / file)
    told = tally("audit", run, "--full", "--html", tmp_path / "report.html")
    assert (told.code, told.out.split()[0]) == (code, word)
    assert Path(file).name in told.out
    assert Path(file).name in (tmp_path / "report.html").read_text()
    told = tally("verify-segment", run, "--from", 0, "--to", 4, "--json")
    report = json.loads(told.out)
    assert (told.code, report["verdict"]) == (code, word.lower())
    assert Path(file).name in told.out


@pytest.mark.parametrize("name", ["a transcript cut short", "no transcript", "an anchor cut short", "no anchor"])
def test_fsck_names_what_is_damaged_and_gives_no_verdict(tally: Tally, run: Path, name: str) -> None:
    file, damage, (code, _) = DAMAGES[name]
    damage(run / file)
    told = tally("fsck", run)
    assert (told.code, told.out) == (1 if code == 1 else 4, "")
    assert Path(file).name in told.complaint


def test_an_anchor_that_is_missing_keeps_no_other_segment_from_being_replayed(tally: Tally, run: Path) -> None:
    (run / "anchors/step_00000004.safetensors").unlink()
    report = json.loads(tally("audit", run, "--full", "--json").out)
    assert [(each["from"], each["to"], each["state"]) for each in report["segments"]] == [(8, 12, "agrees")]


def test_a_claim_that_cannot_be_read_is_rejected_by_whoever_kept_its_digest(tally: Tally, run: Path) -> None:
    published = RunDirectory(run).claim().identity
    append(b"{}")(run / "claim.json")
    told = tally("audit", run, "--claim", published)
    assert (told.code, told.out.split()[0]) == REJECTED
    assert f"not the expected claim {published}" in told.out


@pytest.mark.parametrize("file", ["claim.json", "spec.json", "environment.json"])
def test_another_version_is_not_understood(tally: Tally, run: Path, file: str) -> None:
    data = (run / file).read_bytes()
    (run / file).write_bytes(data.replace(b'"version":1', b'"version":2'))
    told = tally("audit", run)
    assert told.code == (3 if file == "claim.json" else 1)
    assert f"{file}: version" in told.out
