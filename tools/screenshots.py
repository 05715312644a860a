"""The pictures of the playground in the documentation: `python -m tools.screenshots [FOLDER]`, with a Chromium installed.

A server on the embedded model is started, asked as a person would, and photographed: idle, while it writes, with an error, on a
phone.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from octavo.cli.own_server import OwnServer

_DESK = {"width": 1180, "height": 760}
_PHONE = {"width": 390, "height": 780}
_QUESTION = "Write a Python function that returns the number of pages of an octavo made of n sheets, and explain it."


async def _open(browser: Browser, url: str, **options: Any) -> Page:
    page = await browser.new_page(**options)
    await page.goto(url)
    await page.locator("#model:enabled").wait_for()
    return page


async def _ask(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


async def photograph(url: str, folder: Path) -> None:
    """Write the pictures of the page at `url`."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await _open(browser, url, viewport=_DESK, color_scheme="light")
        await page.wait_for_timeout(1500)
        await page.screenshot(path=folder / "idle.png")
        await page.get_by_label("Temperature").fill("0")
        await page.get_by_label("Most tokens").fill("220")
        await _ask(page, _QUESTION)
        await page.locator(".assistant[aria-busy] .text").get_by_text("def").first.wait_for(timeout=120_000)
        await page.wait_for_timeout(700)
        await page.screenshot(path=folder / "streaming.png")
        await page.locator(".note").wait_for(timeout=120_000)
        await page.get_by_label("Top p").fill("7")
        await _ask(page, "And how many leaves?")
        await page.get_by_role("alert").wait_for()
        await page.screenshot(path=folder / "error.png")
        phone = await _open(browser, url, viewport=_PHONE, color_scheme="dark", device_scale_factor=2, is_mobile=True)
        await _ask(phone, "What is an octavo? One sentence.")
        await phone.locator(".note").wait_for(timeout=120_000)
        await phone.screenshot(path=folder / "phone.png")
        await browser.close()


async def _serve_and_photograph(server: OwnServer, folder: Path) -> None:
    await server.ready()
    await photograph(server.url, folder)


def main() -> None:
    """Write them."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/playground")
    folder.mkdir(parents=True, exist_ok=True)
    with OwnServer(["--max-model-len", "2048"]) as server:
        asyncio.run(_serve_and_photograph(server, folder))


if __name__ == "__main__":
    main()
