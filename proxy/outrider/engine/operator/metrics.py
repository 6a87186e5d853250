"""The metrics of the operator. The kubernetes page of the documentation lists them."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from outrider.metrics import refused_connections


class OperatorMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.admissions = counter(
            "outrider_operator_admissions", "Pods that the webhook was asked about, by result.", ["result"]
        )
        for result in ("patched", "unpatched", "invalid", "failed", "late"):
            # From 0 on, so that the first one is an increase.
            self.admissions.labels(result)
        self.openings = counter("outrider_operator_openings", "Gates that were opened, by reason.", ["reason"])
        self.gated = gauge("outrider_operator_gated_pods", "Pods that wait for their data.")
        self.leader = gauge("outrider_operator_leader", "1: this process opens gates.")
        self.refused_connections = refused_connections(self.registry)
        self.failures = counter(
            "outrider_operator_failures", "Rounds of a loop that failed, and are made again.", ["loop"]
        )
