"""The reference of metrics has what a running broker shows, no more and no less."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.failover import local_cluster

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def test_the_page_of_metrics_has_what_a_broker_shows(tmp_path: Path) -> None:
    with local_cluster(tmp_path, shards=1, replicas=1, nameservers=1, mode="async") as cluster:
        (broker,) = (node for node in cluster.plan.nodes if node.is_broker)
        with urllib.request.urlopen(f"http://{broker.host}:{broker.metrics_port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    shown = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type, family.documentation)
        for family in text_string_to_metric_families(text)
    }
    written = set(re.findall(r"^\| `(\w+)` \| (\w+) \| [^|]* \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    assert shown == written
