"""Every page in a real browser: no console error, fits a phone, dark, keyboard, and what htmx does.

With `TALLY_SCREENSHOTS=FOLDER`, each page is kept there as a picture, on a desktop and on a phone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.http.server import served
from tallystick.database.pages.router import VIEWS, Following, create_pages
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.tally.database import Database
from tests.database.pages.addresses import Addresses
from tests.database.pages.recording import Recording

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
DESKTOP, PHONE = {"width": 1200, "height": 850}, {"width": 390, "height": 844}
pytestmark = pytest.mark.skipif(not CHROMIUM.is_file(), reason=f"no browser: {CHROMIUM} (apt install chromium)")


@pytest.fixture(scope="module")  # while it lives, this thread has an event loop that other tests cannot have
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield found
        found.close()


@pytest.fixture(scope="module")
def url(database: Database) -> Iterator[str]:
    with served(create_pages(database)) as found:
        yield found


class Seen:
    """A page of the browser, and whatever its console said."""

    def __init__(self, browser: Any, url: str, size: dict[str, int], scheme: str) -> None:
        context = browser.new_context(viewport=size, color_scheme=scheme)
        self.page, self.url = context.new_page(), url
        self.problems: list[str] = []
        self.page.on("console", lambda said: self.problems.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("requestfailed", self._failed)

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left before
            self.problems.append(f"{request.failure}: {request.url}")

    def open(self, address: str) -> Any:
        self.page.goto(self.url + address)
        return self.page


@pytest.fixture(scope="module")
def desktop(browser: Any, url: str) -> Seen:
    return Seen(browser, url, DESKTOP, "light")


@pytest.fixture(scope="module")
def phone(browser: Any, url: str) -> Seen:
    return Seen(browser, url, PHONE, "dark")


def keep(page: Any, name: str) -> None:
    """Keep a picture of the page, where somebody wants it."""
    if folder := os.environ.get("TALLY_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("name", [*VIEWS])
def test_every_page_is_quiet_and_fits(desktop: Seen, phone: Seen, addresses: Addresses, name: str) -> None:
    for seen, where in ((desktop, "desktop"), (phone, "phone")):
        page = seen.open(addresses.of(name))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide on a {where}"
        assert page.evaluate("document.querySelectorAll('main').length") == 1
        keep(page, f"{name}-{where}")
        assert seen.problems == []


def test_dark_and_light_are_the_readers_choice(desktop: Seen, phone: Seen) -> None:
    brightness = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    assert desktop.open("/").evaluate(brightness) > 200
    assert phone.open("/").evaluate(brightness) < 60


def test_the_keyboard_reaches_the_content_first_and_shows_where_it_is(desktop: Seen) -> None:
    page = desktop.open("/")
    page.keyboard.press("Tab")
    focused = "document.activeElement"
    assert page.evaluate(f"{focused}.textContent") == "Skip to the content"
    assert page.evaluate(f"{focused}.getBoundingClientRect().left >= 0")
    assert page.evaluate(f"getComputedStyle({focused}).outlineStyle") != "none"
    page.keyboard.press("Enter")
    assert page.evaluate(f"{focused}.id") == "main"


def test_tables_and_drawings_are_named_for_a_screen_reader(desktop: Seen, addresses: Addresses) -> None:
    for name in ("run", "timeline", "dispute", "stream", "devices"):
        page = desktop.open(addresses.of(name))
        assert page.evaluate("[...document.querySelectorAll('thead th')].every(each => each.scope === 'col')")
        unnamed = "[...document.querySelectorAll('main svg[role]')].filter(each => !each.querySelector('title'))"
        assert page.evaluate(f"{unnamed}.length") == 0


def test_operators_are_filtered_as_one_types_and_more_are_loaded(desktop: Seen, addresses: Addresses) -> None:
    page = desktop.open(addresses.of("graph"))
    rows = page.locator("#rows > tr")
    before = rows.count()
    page.get_by_role("link", name="More operators").click()
    rows.nth(before).wait_for()
    page.get_by_label("operator begins with").type("aten.mm")
    page.locator("#rows").get_by_text("aten.embedding").first.wait_for(state="detached")
    assert 0 < rows.count() < before
    assert all(text.startswith("aten.mm") for text in page.locator("#rows code").all_text_contents())
    assert desktop.problems == []


def test_a_run_that_is_being_recorded_grows_without_a_new_page(
    browser: Any, recording: Recording, tmp_path: Path
) -> None:
    recording.write(5)
    with WorkloadDatabase(tmp_path / "tally.db", writable=True) as held:
        following = Following(held, (str(recording.path),), print)
        following.read()
        with served(create_pages(Database(held))) as url:
            seen = Seen(browser, url, DESKTOP, "light")
            page = seen.open("/run?name=run")
            page.get_by_text("steps 1 to 3").first.wait_for()
            recording.write(9)
            following.read_on()
            page.get_by_text("steps 1 to 6").first.wait_for()
            assert seen.problems == []


def test_a_drawing_and_a_dispute_move_without_a_new_page(desktop: Seen, addresses: Addresses) -> None:
    page = desktop.open(addresses.of("dispute"))
    page.evaluate("window.same = true")
    page.get_by_role("link", name="the next move").click()
    page.get_by_text("after move 3 of 3").wait_for()
    assert page.evaluate("window.same")
    page = desktop.open(addresses.of("graph"))
    page.evaluate("window.same = true")
    page.get_by_role("link", name="size: 150 per cent").click()
    page.locator(".scale-150 svg").wait_for()
    assert page.evaluate("window.same")
    assert desktop.problems == []
