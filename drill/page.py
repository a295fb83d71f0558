"""The report as one HTML page: everything is in it, nothing is fetched; readable in light and in dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from .charts import shard_chart

Document = dict[str, Any]

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f6f7f9; --ink: #1c2430; --faint: #66707f;
  --line: #d6dbe2; --good: #1a7f45; --bad: #c2281d; --none: #8a6d1b; --ack: #2f6fb2; --recv: #4c9a6a;
  --refused: #d9822b; --unknown: #b0308f; --fault: #c2281d; --master: #2f6fb2; --slave: #b9c9da; --silent: #e3b7b3; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --panel: #1d232b; --ink: #dfe5ec; --faint: #95a0ae;
  --line: #343d49; --good: #5cc98a; --bad: #ff7b6e; --none: #d9b650; --ack: #6aa9e9; --recv: #69c493;
  --refused: #f0a55a; --unknown: #e07cc6; --fault: #ff7b6e; --master: #4f8fd0; --slave: #47586b; --silent: #7a3b36; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 24px 20px 60px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 40px 0 6px; }
h3 { font-size: 15px; margin: 22px 0 6px; }
p { margin: 4px 0; } .faint { color: var(--faint); } a { color: var(--ack); }
code { font: 13px ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; margin: 6px 0;
  white-space: pre-wrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 8px 0; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--faint); font-size: 13px; } 
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.tight { white-space: nowrap; }
.badge { display: inline-block; min-width: 74px; text-align: center; border-radius: 4px; padding: 0 8px;
  font-size: 13px; font-weight: 600; border: 1px solid currentColor; white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); } .none { color: var(--none); }
.figures { display: flex; flex-wrap: wrap; gap: 10px; margin: 12px 0; }
.figure { background: var(--panel); border: 1px solid var(--line); border-radius: 6px;
  padding: 8px 14px; min-width: 120px; }
.figure b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.figure span { color: var(--faint); font-size: 13px; }
ul.examples { margin: 4px 0 0; padding-left: 18px; font-size: 13px; }
.chart { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 8px;
  margin: 8px 0; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 720px; height: auto; } svg text { fill: var(--ink); font-size: 11px; }
svg .faint { fill: var(--faint); } svg .grid { stroke: var(--line); } svg .fault { fill: var(--fault); opacity: 0.13; }
svg .ack { fill: var(--ack); } svg .recv { stroke: var(--recv); fill: none; stroke-width: 1.5; }
svg .refused { fill: var(--refused); } svg .unknown { fill: var(--unknown); } svg .slow { fill: var(--ack); }
svg .MASTER { fill: var(--master); } svg .SLAVE { fill: var(--slave); } svg .silent { fill: var(--silent); }
svg text.onmaster { fill: #ffffff; font-size: 10px; } svg text.onother { font-size: 10px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--faint); }
.legend i.fault { opacity: 0.25; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px;
  vertical-align: -1px; }
"""

LEGEND = (
    ("ack", "acknowledged sends"),
    ("recv", "received by the group"),
    ("refused", "refused"),
    ("unknown", "outcome unknown"),
    ("fault", "fault"),
    ("master", "master"),
    ("slave", "slave"),
    ("silent", "no answer"),
)


def render(documents: Sequence[Document]) -> str:
    """The page of these drills."""
    done = [each for each in documents if "verdicts" in each]
    well = all(each["ok"] for each in documents)
    title = "Failover drills" if len(documents) > 1 else f"Failover drill {documents[0]['drill']}"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)} {_badge(well, 'all held', 'violated')}</h1>",
    ]
    if len(documents) > 1:
        parts.append(_overview(documents))
    parts += [_drill(each) for each in done]
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _badge(holds: bool | None, yes: str = "holds", no: str = "violated", unjudged: str = "not judged") -> str:
    kind, text = ("none", unjudged) if holds is None else ("good", yes) if holds else ("bad", no)
    return f'<span class="badge {kind}">{text}</span>'


def _anchor(document: Document) -> str:
    return escape(f"{document['drill']}-{document['seed']}", quote=True)


def _overview(documents: Sequence[Document]) -> str:
    rows = []
    for each in documents:
        name = f"<td class=tight><a href='#{_anchor(each)}'>{escape(each['drill'])}</a></td>"
        name += f"<td class=n>{each['seed']}</td>"
        if "verdicts" in each:
            counts, longest = each["counts"], max((o["longest_ms"] for o in each["outages"]), default=0)
            broken = [v["invariant"] for v in each["verdicts"] if v["holds"] is False]
            cells = [f"<td>{_badge(each['ok'])} {escape(', '.join(broken))}</td>"]
            cells += [f"<td class=n>{counts[n]:,}</td>" for n in ("acknowledged", "refused", "unknown", "duplicates")]
            cells.append(f"<td class=n>{longest:,.0f}</td>")
        else:
            why = each.get("skipped") or each.get("failed", "")
            badge = _badge(None, unjudged="skipped") if "skipped" in each else _badge(False, no="broke off")
            cells = [f"<td colspan=6>{badge} {escape(why)}</td>"]
        rows.append(f"<tr>{name}{''.join(cells)}</tr>")
    heads = ("drill", "seed", "verdict", "acknowledged", "refused", "unknown", "delivered again", "longest outage, ms")
    head = "".join(f"<th{' class=n' if index in (1, 3, 4, 5, 6, 7) else ''}>{h}</th>" for index, h in enumerate(heads))
    return f"<div class=scroll><table><tr>{head}</tr>{''.join(rows)}</table></div>"


def _drill(document: Document) -> str:
    windows = "; ".join(
        f"{escape(w['what'])} {escape(w['target'])}, {w['start_s']:.1f} to {w['end_s']:.1f} s"
        for w in document["windows"]
    )
    parts = [
        f"<section id='{_anchor(document)}'>",
        f"<h2>{escape(document['drill'])}, seed {document['seed']} {_badge(document['ok'], 'all held')}</h2>",
        f"<p class=faint>Mode {escape(document['mode'])}. {windows}.</p>",
        f"<p>Repeat it: <code>{escape(document['command'])}</code></p>",
        _figures(document),
        "<h3>Timeline</h3>",
        '<div class="legend">'
        + "".join(
            f"<span><i class='{key}' style='background:var(--{key})'></i>{escape(text)}</span>" for key, text in LEGEND
        )
        + "</div>",
    ]
    parts += [f'<div class="chart">{shard_chart(document, shard)}</div>' for shard in document["timeline"]["shards"]]
    parts += [
        "<h3>Latency of acknowledged sends, ms</h3>",
        _latency(document),
        "<h3>Invariants</h3>",
        _verdicts(document),
    ]
    if document["notes"]:
        parts.append("<h3>Notes</h3><ul>" + "".join(f"<li>{escape(note)}</li>" for note in document["notes"]) + "</ul>")
    parts.append("</section>")
    return "\n".join(parts)


def _figures(document: Document) -> str:
    counts = document["counts"]
    told = [(f"{counts[name]:,}", name) for name in ("acknowledged", "refused", "unknown", "received")]
    told.append((f"{counts['duplicates']:,}", "delivered again"))
    told += [
        (f"{each['longest_ms']:,.0f} ms", f"{each['shard']} without acknowledgement") for each in document["outages"]
    ]
    if document["target_ms"] is not None:
        met = "reached" if document["target_met"] else "missed"
        told.append((f"≤ {document['target_ms']:,} ms", f"target, {met}"))
    boxes = "".join(f'<div class="figure"><b>{value}</b><span>{escape(name)}</span></div>' for value, name in told)
    return f'<div class="figures">{boxes}</div>'


def _latency(document: Document) -> str:
    rows = []
    for phase, found in document["latency_ms"].items():
        cells = "".join(f"<td class=n>{_number(found[name])}</td>" for name in ("count", "p50", "p99", "max"))
        rows.append(f"<tr><td>{phase} the fault</td>{cells}</tr>")
    heads = "".join(f"<th class=n>{name}</th>" for name in ("sends", "p50", "p99", "max"))
    return f"<div class=scroll><table><tr><th></th>{heads}</tr>{''.join(rows)}</table></div>"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _verdicts(document: Document) -> str:
    rows = []
    for each in document["verdicts"]:
        examples = "".join(f"<li><code>{escape(text)}</code></li>" for text in each["examples"])
        examples = f'<ul class="examples">{examples}</ul>' if examples else ""
        note = f'<span class="faint">{escape(each["note"])}</span>' if each["note"] else ""
        rows.append(
            f"<tr><td class=tight>{each['invariant']}</td><td>{_badge(each['holds'])}</td><td>{escape(each['title'])}"
            f"</td><td class=n>{each['checked']:,}</td><td class=n>{each['violations']:,}</td>"
            f"<td>{note}{examples}</td></tr>"
        )
    head = (
        "<th></th><th>verdict</th><th>what has to hold</th><th class=n>checked</th><th class=n>violations</th><th></th>"
    )
    return f"<div class=scroll><table><tr>{head}</tr>{''.join(rows)}</table></div>"
