"""The packages of tensorquery import one way, and no module takes part in a circle, whatever form an import has."""

import ast
from pathlib import Path

import tensorquery

SOURCE = Path(tensorquery.__file__).parent

# From the top to the bottom: a package imports only what stands in a line below its own. What stands in one line
# does not import one another.
ORDER = [
    ["tensorquery", "tensorquery.__main__"],
    ["tensorquery.compat", "tensorquery.cli"],
    ["tensorquery.integrations"],
    ["tensorquery.loading"],
    ["tensorquery.loading.workers"],
    ["tensorquery.sql"],
    ["tensorquery.sql.filters"],
    ["tensorquery.sharding"],
    ["tensorquery.metrics"],
    ["tensorquery.distributed"],
    ["tensorquery.display"],
    ["tensorquery._util"],
    ["tensorquery.errors"],
    ["tensorquery._core"],
]
LEVELS = {package: level for level, line in enumerate(ORDER) for package in line}


def modules(source=SOURCE):
    """The syntax tree of every module, by name."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = ["tensorquery", *path.relative_to(source).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text())
    return found


def named(module, name, known):
    """The module that `from module import name` imports: the one called `name`, if there is one."""
    inner = f"{module}.{name}"
    return inner if inner in known or inner == "tensorquery._core" else module


def imports(tree, known):
    """The modules of tensorquery that a module names anywhere: at its top, in functions, for type checking, or as text."""
    found = set()
    # The bare name of a package may be a logger's, too.
    texts = {name for name in known if f"{name}." not in "".join(f"{other} " for other in known)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            found.update(named(node.module, alias.name, known) for alias in node.names)
        elif isinstance(node, ast.Constant) and node.value in texts:
            # The argument of `importlib.import_module`, or of what calls it.
            found.add(node.value)
    return {name for name in found if name.split(".")[0] == "tensorquery"}


def package_of(module):
    """The longest name in `ORDER` to which a module belongs."""
    parts = module.split(".")
    for length in range(len(parts), 1, -1):
        name = ".".join(parts[:length])
        if name in LEVELS:
            return name
    assert module == "tensorquery", f"{module} belongs to no package; is it in the right folder?"
    return module


def graph(trees):
    return {name: imports(tree, trees) - {name} for name, tree in trees.items()}


def upward(edges):
    """Imports that go up, or sideways to another package."""
    return [
        f"{module} imports {target}"
        for module, targets in edges.items()
        for target in sorted(targets)
        if package_of(module) != package_of(target)
        and LEVELS[package_of(module)] >= LEVELS[package_of(target)]
    ]


def circles(edges):
    """Sets of modules that import one another, directly or not."""
    number, low, stack, found = {}, {}, [], []

    def visit(name):
        number[name] = low[name] = len(number)
        stack.append(name)
        for target in sorted(edges.get(name, ())):
            if target not in number:
                visit(target)
            if target in stack:
                low[name] = min(low[name], low[target])
        if low[name] == number[name]:
            ring = stack[stack.index(name) :]
            del stack[-len(ring) :]
            if len(ring) > 1:
                found.append(sorted(ring))

    for name in edges:
        if name not in number:
            visit(name)
    return found


def test_packages_import_one_way():
    edges = graph(modules())
    assert len(edges) > 80
    assert sum(map(len, edges.values())) > 300
    assert {package_of(module) for module in edges} == set(LEVELS) - {"tensorquery._core"}
    assert upward(edges) == []


def test_no_module_is_in_a_circle():
    edges = graph(modules())
    assert circles(edges) == []


def private_reads(tree):
    """Attributes with an underscore that are read of a dataset: of what is called so, or held under that name."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and node.attr.startswith("_")):
            continue
        owner = node.value
        name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
        if name in ("dataset", "_dataset") and not node.attr.startswith("__"):
            yield f"line {node.lineno}: {name}.{node.attr}"


def test_nobody_outside_loading_reads_what_is_private_to_a_dataset():
    inside, outside = [], []
    for module, tree in modules().items():
        reads = [f"{module}, {read}" for read in private_reads(tree)]
        (inside if module.startswith("tensorquery.loading") else outside).extend(reads)
    assert inside
    assert outside == []
