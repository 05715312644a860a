"""The page at /, as a person uses it, in a headless Chromium; and what it must not need."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from octavo.config.serve import ServeConfig
from octavo.protocol.output import EngineStats
from tests.server.fake_service import FakeService, answer_text
from tests.server.harness import client, loopback, run

if TYPE_CHECKING:
    from playwright.async_api import Page

PHONE = {"width": 360, "height": 740}


def test_the_page_needs_no_key_and_nothing_from_elsewhere(service: FakeService) -> None:
    async def ask() -> None:
        async with client(service, ServeConfig(api_key=("k",))) as http:
            page = await http.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert set(re.findall(r"https?://[\w.]+", page.text)) == {"http://www.w3.org"}  # The name of SVG.
        assert re.findall(r"(?:src|href)=\"(?!data:)", page.text) == []
        assert "innerHTML" not in page.text

    run(ask())


@contextlib.asynccontextmanager
async def _opened(url: str, **options: object) -> AsyncGenerator[Page]:
    """Yield the page at a URL; what its scripts complain of is an error."""
    from playwright.async_api import async_playwright

    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    complaints: list[str] = []
    async with async_playwright() as driver:
        # Its sandbox needs what containers have not; it shows our own page only.
        browser = await driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = await browser.new_page(**options)  # type: ignore[arg-type]
        page.set_default_timeout(8000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if "Security Policy" in line.text else None)
        await page.goto(url)
        yield page
        await browser.close()
    assert complaints == []


def _use(
    service: FakeService, config: ServeConfig, steps: Callable[[Page], Awaitable[None]], **options: object
) -> None:
    async def go() -> None:
        async with loopback(service, config) as url, _opened(url, **options) as page:
            await steps(page)

    run(go())


async def _write(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


@pytest.mark.browser
def test_a_chat_is_streamed_and_goes_on(service: FakeService, config: ServeConfig) -> None:
    service.delay = 0.05

    async def steps(page: Page) -> None:
        await page.get_by_label("Model").select_option("small")
        await page.get_by_label("System prompt").fill("Be brief.")
        await page.get_by_label("Temperature").fill("0.25")
        await page.get_by_label("Most tokens").fill("6")
        await _write(page, "Hi")
        # The first words are there before the last.
        busy = page.locator(".assistant[aria-busy]")
        await busy.get_by_text("Ein Oktav").wait_for()
        assert await page.get_by_role("button", name="Stop").is_visible()
        await page.get_by_role("button", name="Send").wait_for()
        assert await page.locator(".assistant .text").inner_text() == answer_text(0, 6)
        assert "6 tokens" in await page.locator(".assistant .note").inner_text()
        await _write(page, "More")
        await page.locator(".assistant").nth(1).get_by_text("8 tokens").or_(page.locator(".note").nth(1)).wait_for()

    _use(service, config, steps)
    (messages, _), (later, _) = service.conversations
    roles = [(one["role"], one["content"]) for one in later]
    assert roles[: len(messages)] == [(one["role"], one["content"]) for one in messages]
    assert roles == [("system", "Be brief."), ("user", "Hi"), ("assistant", answer_text(0, 6)), ("user", "More")]
    _, params, _ = service.requests[0]
    assert (params.temperature, params.max_tokens) == (0.25, 6)
    assert service.requests[0][1].top_p == 1.0


@pytest.mark.browser
def test_stop_ends_the_request_and_keeps_what_came(service: FakeService, config: ServeConfig) -> None:
    service.delay = 0.2

    async def steps(page: Page) -> None:
        await _write(page, "Hi")
        await page.locator(".assistant").get_by_text("Ein Oktav").wait_for()
        await page.get_by_role("button", name="Stop").click()
        await page.get_by_role("button", name="Send").wait_for()
        assert answer_text(0, 8).startswith(await page.locator(".assistant .text").inner_text())
        assert await page.locator(".error").count() == 0

    _use(service, config, steps)
    assert len(service.aborted) == 1


@pytest.mark.browser
def test_a_key_is_asked_for_only_when_calls_need_one(service: FakeService, config: ServeConfig) -> None:
    async def steps(page: Page) -> None:
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("API key").fill("wrong")
        await page.keyboard.press("Enter")
        await dialog.get_by_text("did not take that key").wait_for()
        await dialog.get_by_label("API key").fill("right")
        await dialog.get_by_role("button", name="Unlock").click()
        await dialog.wait_for(state="hidden")
        await _write(page, "Hi")
        await page.locator(".note").wait_for()
        # It lives as long as the tab, and can be forgotten.
        await page.reload()
        await page.get_by_role("button", name="Forget the API key").click()
        await _write(page, "Again")
        await dialog.get_by_role("button", name="Cancel").click()
        await page.get_by_role("alert").get_by_text("a valid key is needed").wait_for()

    _use(service, dataclasses.replace(config, api_key=("right",)), steps)
    assert len(service.requests) == 1

    async def free(page: Page) -> None:
        await page.locator("#model:enabled").wait_for()
        assert await page.get_by_role("dialog").count() == 0

    _use(service, config, free)


@pytest.mark.browser
def test_an_error_says_what_is_wrong_and_can_be_tried_again(service: FakeService, config: ServeConfig) -> None:
    service.fail_at = 3

    async def steps(page: Page) -> None:
        await page.get_by_label("Top p").fill("7")
        await _write(page, "<img src=x onerror=alert(1)>")
        alert = page.get_by_role("alert")
        await alert.get_by_text("top_p").wait_for()
        assert await page.locator("#log img").count() == 0
        await page.get_by_label("Top p").fill("")
        await alert.get_by_role("button", name="Try again").click()
        # This one fails in mid-stream.
        await alert.wait_for()
        assert await page.locator(".user").count() == 1
        service.fail_at = None
        await alert.get_by_role("button", name="Try again").click()
        await page.locator(".note").wait_for()
        assert await page.locator(".assistant .text").inner_text() == answer_text(0, 8)
        service.queue_full = True
        await _write(page, "One more")
        await alert.get_by_text("the queue is full").wait_for()

    _use(service, config, steps)


@pytest.mark.browser
@pytest.mark.parametrize("names", ["octavo", "vllm", "both"])
def test_figures_are_live(service: FakeService, config: ServeConfig, names: str) -> None:
    service.figures = EngineStats(num_running=3, num_waiting=2, num_pages=40, used_pages=10)

    async def steps(page: Page) -> None:
        shown = {}
        for name in ("Running", "Waiting", "Cache used", "Tokens/s"):
            shown[name] = page.locator("dl div", has_text=name).locator("dd")
        await shown["Running"].get_by_text("3").wait_for()
        assert await shown["Waiting"].inner_text() == "2"
        assert await shown["Cache used"].inner_text() == "25%"
        service.figures = EngineStats(num_running=7, num_waiting=0, num_pages=40, used_pages=40)
        await _write(page, "Hi")
        await shown["Cache used"].get_by_text("100%").wait_for()
        assert await shown["Running"].inner_text() == "7"
        assert float(await shown["Tokens/s"].inner_text()) > 1

    _use(service, dataclasses.replace(config, metrics_names=names), steps)


@pytest.mark.browser
def test_it_fits_a_phone_and_can_be_used_with_the_keyboard_alone(service: FakeService, config: ServeConfig) -> None:
    async def steps(page: Page) -> None:
        width = "document.documentElement.scrollWidth"
        assert await page.evaluate(width) <= PHONE["width"]
        settings = page.get_by_role("button", name="Settings")
        await settings.focus()
        await page.keyboard.press("Enter")
        await page.get_by_label("Top k").fill("5")
        assert await page.evaluate(width) <= PHONE["width"]
        await page.get_by_role("button", name="Chat", exact=True).click()
        await page.get_by_label("Message").focus()
        await page.keyboard.type("Hi")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("there")
        await page.keyboard.press("Enter")
        await page.locator(".note").wait_for()
        assert await page.evaluate(width) <= PHONE["width"]
        # Every field and button has a name for those who hear the page.
        unnamed = await page.evaluate(
            "[...document.querySelectorAll('input,select,textarea')].filter((f) => !f.labels.length).length"
        )
        assert unnamed == 0
        assert await page.evaluate("[...document.querySelectorAll('button')].every((b) => b.textContent.trim())")
        for name in ("no model yet", "a model whose name is longer than a telephone is wide"):
            await page.evaluate("(name) => document.querySelector('#model').replaceChildren(new Option(name))", name)
            assert await page.evaluate(width) <= PHONE["width"]

    _use(service, config, steps, viewport=PHONE)
    assert service.conversations[0][0][0]["content"] == "Hi\nthere"
    assert service.requests[0][1].top_k == 5


CONTRAST = """() => {
  const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!color.endsWith(", 0)")) return color;
    }
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility() || node.closest("script, style, option, .unseen")) continue;
    const pair = [light(getComputedStyle(node).color), light(behind(node))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) found.push(`${node.tagName} ${node.textContent.trim()} ${ratio.toFixed(2)}`);
  }
  return found;
}"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(service: FakeService, config: ServeConfig, scheme: str) -> None:
    async def steps(page: Page) -> None:
        await page.locator("#model:enabled").wait_for()
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in re.findall(r"\d+", dark)) < 3 * 64) == (scheme == "dark")
        assert await page.evaluate(CONTRAST) == []
        await _write(page, "Hi")
        await page.locator(".note").wait_for()
        service.queue_full = True
        await _write(page, "Hi")
        await page.get_by_role("alert").wait_for()
        assert await page.evaluate(CONTRAST) == []

    _use(service, config, steps, color_scheme=scheme)


@pytest.mark.browser
def test_what_a_model_writes_is_shown_and_never_run(service: FakeService, config: ServeConfig) -> None:
    text = "See **this** `x < y`:\n```python\nprint('<b>')\n```\nand <script>alert(1)</script>"

    async def steps(page: Page) -> None:
        await page.evaluate("(text) => addTurn('assistant', text)", text)
        place = page.locator(".assistant .text")
        assert await place.locator("pre code").inner_text() == "print('<b>')"
        assert await place.locator("strong").inner_text() == "this"
        assert await place.locator("> code").inner_text() == "x < y"
        assert (await place.inner_text()).endswith("and <script>alert(1)</script>")
        assert await place.locator("script, b").count() == 0

    _use(service, config, steps)
