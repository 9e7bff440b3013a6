"""The published vectors against our own functions, against the usual wrong values, and through the plugin."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core import invariances
from grpo_core.conformance import AdapterError, check_vector, differences, load_vectors, resolve_adapter
from grpo_core.own_adapter import adapter

HERE = Path(__file__).parent
VECTORS = load_vectors()
WRONG = [(vector, value, why) for vector in VECTORS for value, why in vector.wrong]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.id)
def test_our_functions_agree_with_the_vector(vector):
    assert check_vector(adapter, vector) == []


@pytest.mark.parametrize(("vector", "value", "why"), WRONG, ids=[f"{v.id}-{i}" for i, (v, _, _) in enumerate(WRONG)])
def test_the_usual_wrong_value_is_refused(vector, value, why):
    assert differences(vector.expected, value, vector.tolerance), why


def test_every_vector_has_a_wrong_value_with_its_cause():
    assert [vector.id for vector in VECTORS if not vector.wrong or not all(why for _, why in vector.wrong)] == []


def test_the_reference_ids_are_all_there():
    ids = " ".join(vector.id for vector in VECTORS)
    wanted = [*(f"V{n}" for n in range(21) if n != 16), "A1", "A2", "A3", "A6", "A7", "A8", "A9", "A10", "A11"]
    assert [name for name in wanted if not re.search(rf"\b{name}\b", ids)] == []


@pytest.mark.parametrize("name", invariances.INVARIANCES)
def test_our_functions_keep_the_invariance(name):
    assert invariances.INVARIANCES[name][1](adapter) == []


@pytest.mark.slow
def test_two_gloo_ranks_with_three_and_two_micro_batches_equal_one_process():
    assert invariances.ranks("grpo_core.own_adapter:adapter") == []


def test_differences_sees_structure_nan_and_tolerance():
    assert differences([1.0, 2.0], [1.0], 0.1)
    assert differences({"a": 1.0}, {}, 0.1)
    assert differences(1.0, math.nan, 0.1) and differences(math.nan, 1.0, 0.1)
    assert differences(None, [0.0], 0.1) and differences([0.0], None, 0.1)
    assert differences(1.0, 1.2, 0.1) and not differences(1.0, 1.05, 0.1)
    assert not differences({"a": [1, None]}, {"a": (1.0, None), "more": 3}, 0.0)


@pytest.mark.parametrize(
    ("name", "part"),
    [("nothing", "module:attribute"), ("no_such_module:x", "no_such_module"), ("math:x", "has no 'x'"), ("math:pi", "none")],
)
def test_a_wrong_adapter_name_says_what_is_missing(name, part):
    with pytest.raises(AdapterError, match=part):
        resolve_adapter(name)


def run_plugin(name: str, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--grpo-conformance", name, *more]
    return subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=600, check=False)


def outcome(result: subprocess.CompletedProcess[str], word: str) -> set[str]:
    return set(re.findall(rf"^{word}\S* \S*grpo-conformance::(\S+)", result.stdout, re.MULTILINE))


@pytest.mark.slow
def test_the_plugin_passes_our_adapter_and_runs_nothing_else():
    result = run_plugin("grpo_core.own_adapter:adapter", "-k", "not ranks")
    assert result.returncode == 0, result.stdout
    count = len(VECTORS) + len(invariances.INVARIANCES)
    assert f"{count} passed" in result.stdout and "1 deselected" in result.stdout


@pytest.mark.slow
def test_the_plugin_finds_the_usual_faults_and_skips_what_is_not_offered():
    result = run_plugin("naive_adapter:adapter", "-k", "not ranks")
    assert result.returncode == 1, result.stdout
    failed = outcome(result, "FAILED")
    assert failed >= {
        "group-1000-grpo", "V0-8x035-eps1e-06", "V3", "V4", "V5-seq-mean-token-mean", "V6-gamma1", "V7", "V9-k3", "V10",
        "V11", "V12", "V13", "A8", "row15", "row18-nan-outside", "row18-all-masked", "invariance-micro-batches",
        "invariance-padding", "invariance-group-order",
    }  # fmt: skip
    assert "the usual wrong value: mean of the micro-batches' means" in result.stdout
    assert "SKIPPED" in result.stdout and "offers no function 'gigpo'" in result.stdout
    assert "V9-k2" not in failed


def test_the_plugin_refuses_an_adapter_that_is_not_there():
    result = run_plugin("no_such_module:adapter")
    assert result.returncode == 4 and "no module 'no_such_module'" in result.stderr


def test_an_unrelated_pytest_run_never_imports_torch():
    code = "import sys, pytest; pytest.main(['--version']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, check=False).returncode == 0
