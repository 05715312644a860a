"""Writes the generated pages of the documentation and the snapshot of public names anew: `python -m tools.pages`.

Tests compare them.
"""

from __future__ import annotations

from pathlib import Path

from tools import flags_page, metrics_page, openapi, public_api, sampling_fields, vllm_flags

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {
    "flags.md": flags_page.render_markdown,
    "metrics.md": metrics_page.render_markdown,
    "sampling-fields.md": sampling_fields.render_markdown,
    "vllm-flags.md": vllm_flags.render_markdown,
}


def main() -> None:
    """Write every page."""
    for name, render in PAGES.items():
        (DOCS / name).write_text(render(), encoding="utf-8")
    openapi.FILE.write_text(openapi.render(), encoding="utf-8")
    (ROOT / "tests" / "arch" / "public_api.txt").write_text(public_api.render(), encoding="utf-8")


if __name__ == "__main__":
    main()
