"""No module imports itself through others, not even under TYPE_CHECKING.

Each module can so be read, moved, tested and started alone.
"""

from __future__ import annotations

import grimp
import pytest


def _circles(graph: grimp.ImportGraph) -> list[set[str]]:
    """The groups of modules in which each imports each, directly or through others."""
    downstream = {module: graph.find_downstream_modules(module) for module in graph.modules}
    circles: list[set[str]] = []
    for module in sorted(graph.modules):
        members = {module} | {other for other in downstream[module] if module in downstream[other]}
        if len(members) > 1 and members not in circles:
            circles.append(members)
    return circles


@pytest.mark.parametrize("package", ["outrider", "tests"])
def test_no_module_imports_itself_through_others(package: str) -> None:
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    assert _circles(graph) == []


def test_a_circle_of_two_modules_is_found() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")):
        graph.add_import(importer=importer, imported=imported)
    assert _circles(graph) == [{"b", "c"}]
