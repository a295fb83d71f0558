"""Members of a group that subscribe otherwise."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Mismatches:
    """Other members' subscriptions that differ, as brokers tell of them.

    Each broker group of a topic says the same; a warning is logged when it is new, or has changed.
    """

    def __init__(self, group: str, client_id: str) -> None:
        self._group = group
        self._client_id = client_id
        self._told: dict[tuple[str, str], tuple[str | None, str | None]] = {}

    def tell(self, topic: str, expression: str | None, other_client_id: str, other_expression: str | None) -> None:
        """Log that another member wants something else; None stands for one that does not subscribe the topic."""
        known = self._told.get((topic, other_client_id))
        self._told[topic, other_client_id] = (expression, other_expression)
        if known != (expression, other_expression):
            log.warning(
                "subscription mismatch group=%s topic=%s client=%s expression=%r other_client=%s other_expression=%r: "
                "members of a group must subscribe alike, or messages go to members that do not want them",
                self._group,
                topic,
                self._client_id,
                expression,
                other_client_id,
                other_expression,
            )

    def forget(self) -> None:
        """The own subscriptions are others now: what is said of them is new."""
        self._told.clear()
