"""The benchmark cases."""

from .cases import CASES

__all__ = ["CASES"]
