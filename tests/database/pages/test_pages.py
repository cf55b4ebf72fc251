"""Every page and its twin over HTTP: what they show, escape and refuse."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tallystick.core.canonical_json import decode
from tallystick.database.pages import graphs
from tallystick.database.pages.router import VIEWS, Following, create_pages
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.tally.database import Database
from tests.database.pages.addresses import RUN, Addresses
from tests.database.pages.recording import Recording
from tests.support.workload_scene import ACCEPTED, HOSTILE, REJECTED


class Outline(HTMLParser):
    """Tags that stay open, links, and what a strict policy would block."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.blocked: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.open += [tag] * (tag not in self.VOID)
        self.links += [str(given.get("href"))] * (tag == "a")
        self.blocked += [name for name in given if name.startswith(("on", "hx-on")) or name == "style"]
        self.blocked += ["script"] * (tag == "script" and "src" not in given)
        self.headings += [tag] * (tag in ("h1", "h2", "h3"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    found.close()
    assert found.open == []
    return found


@pytest.mark.parametrize("name", [*VIEWS])
def test_every_page_is_whole_and_has_a_canonical_twin(client: TestClient, addresses: Addresses, name: str) -> None:
    page = client.get(addresses.of(name))
    assert page.status_code == 200, page.text
    found = outline(page.text)
    assert found.blocked == []
    assert found.headings.count("h1") == 1
    assert found.headings[0] == "h1"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    twin = client.get(addresses.of(name, ".json"))
    assert decode(twin.content, "twin")
    assert f"{name}.json" in page.text


@pytest.mark.parametrize("name", [*VIEWS])
def test_every_link_of_a_page_leads_to_a_page(client: TestClient, addresses: Addresses, name: str) -> None:
    links = {link.partition("#")[0] for link in outline(client.get(addresses.of(name)).text).links} - {""}
    by_page = {link.partition("?")[0]: link for link in links}
    assert by_page.keys() & {"runs", "graphs", "./"}
    for link in by_page.values():
        assert client.get(f"/{link.removeprefix('./')}").status_code == 200, link


def test_what_a_prover_wrote_is_escaped_and_cannot_command_a_screen(client: TestClient) -> None:
    page = client.get("/overview").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd\ufffd[31m" in page
    assert HOSTILE in json.loads(client.get("/overview.json").content)["audits"][0]["sentence"]


def test_the_overview_says_how_much_was_verified(client: TestClient, database: Database) -> None:
    steps = database.runs.one().steps
    found = json.loads(client.get("/overview.json").content)
    assert found["coverage"] == {"accepted": 2, "rejected": 1, "steps": steps}
    assert f"of {steps} recorded steps" in client.get("/").text


def test_an_empty_database_says_in_three_lines_how_to_fill_it(tmp_path: Path) -> None:
    with (
        WorkloadDatabase(tmp_path / "tally.db", writable=True) as empty,
        TestClient(create_pages(Database(empty))) as to,
    ):
        page = to.get("/").text
        assert page.count("<li>") == 3
        assert "tally db add" in page
        assert "No run is as asked" in to.get("/runs").text


def test_a_run_shows_its_curve_its_drift_and_who_replayed_what(client: TestClient, database: Database) -> None:
    found = json.loads(client.get("/run.json", params=RUN).content)
    assert found["curve"]["loss"] == [step.loss for step in database.steps]
    assert found["verified"]["spans"] == [[1, 2, "accepted"], [3, 3, "rejected"]]
    assert [(each["step"], each["agrees"]) for each in found["drift"]] == [(1, True), (3, False)]
    page = client.get("/run", params=RUN).text
    assert page.count('class="mark rejected"') == page.count('class="mark accepted"') == 1
    assert re.search(r"<title>Loss, steps 1 to \d+</title>", page)


def test_a_step_says_what_can_be_replayed_and_shows_its_record(client: TestClient, addresses: Addresses) -> None:
    found = json.loads(client.get(addresses.of("step", ".json")).content)
    assert found["replay"]["missing"] == []
    assert found["replay"]["begins"] < 3 <= found["replay"]["ends"]
    assert json.loads(found["record"]["text"])["index"] == 3
    assert [audit["verdict"] for audit in found["audits"]] == ["rejected"]
    assert [finding["agrees"] for finding in found["audits"][0]["findings"]] == [False]


def test_the_operators_of_a_graph_are_filtered_and_paged(
    client: TestClient, database: Database, addresses: Addresses
) -> None:
    root = addresses.root
    asked = {"root": root, "operator": "aten.mm"}
    found = json.loads(client.get("/graph.json", params=asked).content)
    assert found["found"] == sum(each.operator.startswith("aten.mm") for each in database.operators) > 0
    seen, after = [], None
    while True:
        page = json.loads(client.get("/graph.json", params={"root": root, "after": after or ""}).content)
        seen += [each["number"] for each in page["operators"]]
        if (after := page["after"]) is None:
            break
    assert seen == [each.number for each in database.operators]


def test_a_drawing_leads_into_modules_and_to_operators(client: TestClient, addresses: Addresses) -> None:
    root = addresses.root
    whole = client.get("/graph", params={"root": root}).text
    assert re.search(r'<a href="graph\?root=[^"]*&amp;module=', whole)
    near = client.get("/graph", params={"root": root, "around": "5"}).text
    assert 'number=5">' in near
    assert "the graph has none of that name" in client.get("/graph", params={"root": root, "module": "nowhere"}).text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/run", 400),
        ("/run?name=absent", 404),
        ("/run?name=digits+%3C1%3E&first=9&last=2", 400),
        ("/run?name=digits+%3C1%3E&after=%7B%7D", 400),
        ("/run?name=digits+%3C1%3E&after=[1]", 400),
        ("/step?run=digits+%3C1%3E&step=99999", 404),
        ("/step?run=digits+%3C1%3E&step=-1", 400),
        ("/step?run=digits+%3C1%3E&step=" + "9" * 30, 400),
        ("/graph?root=nothing", 404),
        ("/nowhere", 404),
        ("/static/../router.py", 404),
    ],
)
def test_wrong_addresses_are_refused_in_one_line(client: TestClient, path: str, status: int) -> None:
    page, _, asked = path.partition("?")
    for form in ("", ".json"):
        answer = client.get(f"{page}{form}?{asked}")
        assert answer.status_code == status
        assert "Traceback" not in answer.text


def test_another_host_name_gets_nothing(client: TestClient) -> None:
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/", headers={"host": "localhost:8090"}).status_code == 200


def test_an_operator_shows_what_it_reads_and_how_far_audits_found_it_from_its_bound(
    client: TestClient, addresses: Addresses
) -> None:
    found = json.loads(client.get(addresses.of("operator", ".json")).content)
    assert [each["distance"] for each in found["findings"]] == [0.25, 0.25]
    assert found["node"]["results"][0]["ref"] == "n1"
    assert all(each["spec"] for each in found["node"]["operands"])
    other = client.get("/operator.json", params={"graph": addresses.root, "number": 11})
    assert json.loads(other.content)["findings"] == []


def test_a_timeline_draws_each_event_and_leads_to_its_operator(client: TestClient, addresses: Addresses) -> None:
    found = json.loads(client.get(addresses.of("timeline", ".json")).content)
    assert [lane["device"] for lane in found["lanes"]] == ["node1/gpu0", "node2/gpu0"]
    assert [len(lane["events"]) for lane in found["lanes"]] == [2, 1]
    page = client.get(addresses.of("timeline")).text
    assert page.count('class="kernel"') == 3
    later = json.loads(client.get("/timeline.json", params={"name": "timeline", "start": 60, "end": 100}).content)
    assert [[each["start_ns"] for each in lane["events"]] for lane in later["lanes"]] == [[90], [40]]


def test_many_events_become_shares_of_busy_time(
    client: TestClient, addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "DRAWN", 1)
    found = json.loads(client.get(addresses.of("timeline", ".json")).content)
    span = found["end"] - found["start"]
    busy = [sum(lane["busy"]) * span / graphs.SLICES for lane in found["lanes"]]
    assert found["is_thinned"]
    assert busy == pytest.approx([60, 40], rel=0.6)
    assert client.get(addresses.of("timeline")).text.count('class="busy"') == 2 * graphs.SLICES


def test_the_overview_counts_the_device_time_of_accepted_steps(client: TestClient) -> None:
    found = json.loads(client.get("/overview.json").content)["device_time"]
    assert found == pytest.approx({"worked": 100e-9, "accepted": 60e-9})
    assert "60 %" in client.get("/").text


def test_an_audit_shows_what_decided_and_leads_to_its_claim(client: TestClient, addresses: Addresses) -> None:
    found = json.loads(client.get(addresses.of("audit", ".json")).content)
    assert (found["audit"]["outcome"], found["objections_in_all"]) == ("rejected", 2)
    agreeing = client.get("/audit.json", params={"digest": ACCEPTED, "only": "objections"})
    assert json.loads(agreeing.content)["findings"] == []
    assert json.loads(client.get("/audits.json?outcome=rejected").content)["audits"][0]["digest"] == REJECTED
    claim = json.loads(client.get(addresses.of("claim", ".json")).content)
    assert [run["name"] for run in claim["runs"]] == [RUN["name"]]


def test_objections_stand_before_all_else_on_the_page_of_an_audit(client: TestClient, addresses: Addresses) -> None:
    page = client.get(addresses.of("audit")).text
    found = json.loads(client.get(addresses.of("audit", ".json")).content)
    assert [each["agrees"] for each in found["decisive"]] == [False] * found["decisive_in_all"]
    assert found["decisive_in_all"] > 0
    first = page.index("<h2>What disagrees</h2>")
    assert first == page.index("<h2")
    table = page[first : page.index("</table>")]
    assert (table.count('class="verdict rejected"'), "accepted" in table) == (found["decisive_in_all"], False)
    assert "What disagrees" not in client.get("/audit", params={"digest": ACCEPTED}).text


@pytest.mark.parametrize("path", ["/rnus", "/nowhere", "/a/b/xyzzy", "/static/none.css"])
def test_a_mistyped_page_is_a_page_for_browsers_and_a_problem_for_programs(client: TestClient, path: str) -> None:
    browser = client.get(path, headers={"accept": "text/html,application/xhtml+xml"})
    program = client.get(path, headers={"accept": "*/*"})
    assert (browser.status_code, program.status_code) == (404, 404)
    assert (program.headers["content-type"], program.json()["code"]) == ("application/problem+json", "absent")
    found = outline(browser.text)
    assert f"{path}: there is no such page" in browser.text
    assert ("did you mean runs?" in browser.text) == (path == "/rnus")
    assert "default-src 'none'" in browser.headers["content-security-policy"]
    up = "../" * (path.count("/") - 1)
    assert {f"{up}runs", up or "./"} <= set(found.links)
    for link in {*found.links} - {"#main"}:
        assert client.get(f"{path.rpartition('/')[0]}/{link}").status_code == 200
    assert client.get(f"{path}.json", headers={"accept": "text/html"}).json()["status"] == 404


def test_receipts_are_counted_by_verdict_over_the_stream(client: TestClient, addresses: Addresses) -> None:
    found = json.loads(client.get(addresses.of("stream", ".json")).content)
    assert found["verdicts"] == {"accepted": 2, "rejected": 1, "inconclusive": 0, "open": 2}
    assert [part["open"] for part in found["pieces"]] == [0, 0, 0, 1, 1]
    still_open = json.loads(client.get("/stream.json?name=provider&verdict=open").content)
    assert [each["number"] for each in still_open["receipts"]] == [3, 4]


def test_a_dispute_is_replayed_move_by_move(client: TestClient, addresses: Addresses) -> None:
    assert json.loads(client.get(addresses.of("dispute", ".json")).content)["shown"] == 2
    page = client.get(addresses.of("dispute")).text
    assert [page.count(f'class="{state}"') for state in ("past", "shown", "later")] == [1, 1, 1]
    assert "operators 5" in page
    assert 'hx-trigger="every 2s"' in page  # it is not settled


def test_a_run_that_is_being_recorded_grows_on_its_page(recording: Recording, tmp_path: Path) -> None:
    told: list[str] = []
    records = []
    with WorkloadDatabase(tmp_path / "tally.db", writable=True) as held:
        following = Following(held, (str(recording.path),), told.append)
        recording.write(5)
        following.read()
        with TestClient(create_pages(Database(held))) as to:
            assert 'hx-trigger="every 2s"' in to.get("/run?name=run").text
            for count, more in ((7, b""), (7, b"no record\n"), (7, b"no record\n")):
                recording.write(count, more)
                following.read_on()
                records.append(json.loads(to.get("/run.json?name=run").content)["run"]["records"])
    assert records == [7, 7, 7]
    assert [problem.startswith("run: record 7") for problem in told] == [True]


def test_a_step_whose_transcript_is_gone_says_so(recording: Recording, tmp_path: Path) -> None:
    recording.write(7)
    with WorkloadDatabase(tmp_path / "tally.db", writable=True) as held, TestClient(create_pages(Database(held))) as to:
        Following(held, (str(recording.path),), print).read()
        step = {"run": "run", "step": 3}
        assert json.loads(to.get("/step.json", params=step).content)["record"]["text"] is not None
        recording.write(1)
        gone = to.get("/step", params=step)
    assert gone.status_code == 200
    assert "the transcript cannot be read" in gone.text
