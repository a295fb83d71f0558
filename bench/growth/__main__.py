"""``python -m penstock.bench.growth [CURVE[=SIZE,SIZE…]]…``: measures curves, keeps them and writes the page."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from penstock.proto.errors import ConfigError, PenstockError

from ..machine import commit, machine
from ..page import keep
from ..rig import Rig
from .curve import Curve
from .curves import CURVES
from .page import RECORDS, render

SIZES_MAX = 20


def main(arguments: list[str]) -> int:
    """The exit code: 1 if a curve could not be measured, or is worse than linear."""
    options = _parser().parse_args(arguments)
    try:
        wanted = [_asked(each) for each in options.curves or CURVES]
    except ConfigError as error:
        _say(str(error))
        return 2
    failed = False
    with tempfile.TemporaryDirectory(prefix="penstock-growth-", dir=options.scratch) as scratch:
        for curve, sizes in wanted:
            progress = _say if options.verbose else lambda _: None
            rig = Rig(seconds=options.seconds, scratch=Path(scratch), progress=progress)
            try:
                keep(measured(curve, sizes, rig), options.out, RECORDS)
            except PenstockError as error:
                _say(f"{curve.name}: {error}")
                failed = True
    page, is_good = render(options.out)
    _say(f"written: {page}")
    return int(failed or not is_good)


def measured(curve: Curve, sizes: list[int], rig: Rig) -> dict[str, object]:
    """A record: the costs of ``curve`` at each of ``sizes``, by name."""
    found, costs = machine(), {name: list[float]() for name in curve.units}
    for size, figures in zip(sizes, curve.measure(rig, sizes), strict=True):
        _say(f"{curve.name} {size:,}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
        for name in curve.units:
            costs[name].append(figures[name])
    return {"curve": curve.name, "sizes": sizes, "costs": costs, "commit": commit(), "machine": found}


def _asked(words: str) -> tuple[Curve, list[int]]:
    """``CURVE`` or ``CURVE=SIZE,SIZE…``.

    Raises:
        ConfigError: no such curve, or its sizes are not two or more growing numbers.
    """
    name, _, told = words.partition("=")
    if name not in CURVES:
        raise ConfigError(f"no curve {name!r}: {', '.join(CURVES)}")
    curve = CURVES[name]
    if not told:
        return curve, list(curve.sizes)
    parts = told.split(",")
    if not all(part.isdecimal() and len(part) <= 12 for part in parts) or not 2 <= len(parts) <= SIZES_MAX:
        raise ConfigError(f"{words}: 2 to {SIZES_MAX} whole numbers are needed, as {name}=1,{curve.most}")
    sizes = [int(part) for part in parts]
    if sizes != sorted(set(sizes)) or sizes[0] < 1:
        raise ConfigError(f"{words}: each size must be larger than the one before, the first at least 1")
    return curve, sizes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.bench.growth", description=__doc__)
    known = ", ".join(f"{each.name} (up to {each.most:,} {each.axis})" for each in CURVES.values())
    parser.add_argument("curves", nargs="*", metavar="CURVE[=SIZE,…]", help=f"all without: {known}")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measured load")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="where growth.jsonl and growth.html go")
    parser.add_argument("--scratch", type=Path, help="where the stores lie")
    parser.add_argument("--verbose", action="store_true", help="say what is under way")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
