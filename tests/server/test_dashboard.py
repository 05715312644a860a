"""The dashboard asks for metrics that there are, as what they are."""

from __future__ import annotations

import json
import re
from typing import Any

from octavo.observe.metrics import ServerMetrics
from tests.arch.sources import ROOT

BOARD: dict[str, Any] = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_every_metric_of_the_dashboard_exists_and_is_used_as_what_it_is() -> None:
    kinds: dict[str, str] = {}
    for family in ServerMetrics("tiny", lambda: None).collect():
        ending = {"counter": "_total", "histogram": "_bucket", "gauge": ""}[family.type]
        kinds[family.name + ending] = family.type
    named = {name for expression in EXPRESSIONS for name in re.findall(r"octavo:\w+", expression)}
    assert named - set(kinds) == set()
    assert len(named) >= 20
    for expression in EXPRESSIONS:
        for change, name in re.findall(r"(?:(rate|increase)\()?(octavo:\w+)", expression):
            assert bool(change) == (kinds[name] != "gauge"), expression
        labels = set(re.findall(r"by \((\w+)\)", expression)) - {"le"}
        assert labels <= {"finished_reason", "reason"}
    variables = BOARD["templating"]["list"]
    assert set(re.findall(r"octavo:\w+", json.dumps(variables))) <= set(kinds)
    assert {"octavo:queue_wait_seconds", "octavo:saturation", "octavo:num_tokens_waiting"} <= named


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
