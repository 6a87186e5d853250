"""The Helm chart with its default values, as `helm template outrider charts/outrider` prints it: `make chart`."""

from __future__ import annotations

from pathlib import Path

import helm_python as helm

CHART = Path(__file__).parents[2] / "charts" / "outrider"


def rendered(release: str = "outrider", namespace: str = "default") -> str:
    """All manifests, each preceded by the name of its template."""
    with helm.Chart.load(CHART) as chart:
        texts = chart.render({}, name=release, namespace=namespace)
    return "".join(
        f"---\n# Source: {name}\n{text.strip()}\n"
        for name, text in texts.items()
        if name.endswith(".yaml") and text.strip()
    )


if __name__ == "__main__":
    print(rendered(), end="")
