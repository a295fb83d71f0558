"""CommitLog records: their bytes (:mod:`.layout`), the kernels over them (:mod:`.kernels`), and views of them.

Nothing is imported here: ``layout`` and its neighbours cost next to nothing, ``kernels`` loads Numba.
"""

__all__: list[str] = []
