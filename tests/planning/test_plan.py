"""The plan: choices from rates and sizes alone, reasons in words, memory refused before it is allocated."""

from dataclasses import astuple, replace

import pytest
import torch

from kernelcg.backends import dask
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.planning.costs import KernelPrice, Pricing
from kernelcg.planning.plan import Family, Method, Plan, Precision, Storage, in_bytes, in_time
from kernelcg.planning.planner import Options, Resources, Workload, planned, reconsidered
from kernelcg.planning.profile import TYPICAL, PairSeconds, Profile
from kernelcg.planning.workers import TASK, Rates, Workers

GB = 10**9

H200 = Profile(
    "one H200, from measured products, factorisations and bandwidth",
    multiply=2.5e13,
    factorise=5e12,
    stream=5.4e11,
    step=1e-3,
    double=PairSeconds(2.4e-12, 3e-14, 2.6e-13),
    single=PairSeconds(4.75e-13, 1.2e-14, 4.2e-14),
)


def workers(count):
    """Return so many workers with one thread each, as fast as this process."""
    return Workers(count * 4 * GB, (Rates(count, count, TYPICAL),))


def resources(memory=8 * GB, profile=TYPICAL, price=KernelPrice(), device_memory=None):
    return Resources("native", "cpu", 2, memory, device_memory, Pricing(profile, price))


def plan(rows, *, d=8, options=Options(), memory=8 * GB, profile=TYPICAL, price=KernelPrice(), **task) -> Plan:
    return planned(Workload(rows, d, **task), options, resources(memory, profile, price))


def slower(factor):
    """Return a machine whose factorisations are so many times slower."""
    return replace(TYPICAL, multiply=TYPICAL.multiply / factor, factorise=TYPICAL.factorise / factor)


def crossing(profile):
    """Return the smallest number of rows, on a coarse scale, that are not factorised in learning."""
    sizes = (int(300 * 1.2**i) for i in range(40))
    return next(n for n in sizes if plan(n, profile=profile).stages[-1].method != "direct")


def test_few_rows_are_factorised_and_many_are_not():
    assert plan(300).method is Method.DIRECT
    assert plan(100_000).method is Method.ITERATIVE
    assert 500 < crossing(TYPICAL) < 10_000


def test_the_limit_follows_the_rates_of_the_machine():
    usual = crossing(TYPICAL)
    assert crossing(replace(TYPICAL, multiply=8 * TYPICAL.multiply, factorise=8 * TYPICAL.factorise)) > 1.3 * usual
    assert crossing(slower(32)) < usual / 1.3


def test_what_is_asked_for_is_done_on_all_rows():
    chosen = plan(20_000, options=Options(method=Method.DIRECT))
    assert chosen.conditioning.method is chosen.stages[-1].method is Method.DIRECT
    assert "as asked" in chosen.reason
    assert plan(100, options=Options(method=Method.ITERATIVE)).method is Method.ITERATIVE


def test_stages_grow_to_all_rows_and_the_first_are_exact():
    chosen = plan(45_730)
    sizes = [stage.rows for stage in chosen.stages]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 45_730
    assert sizes[-2] == 45_730 // 2
    assert sizes[0] >= 200
    assert chosen.stages[0].method is Method.DIRECT
    assert chosen.stages[-1].method is Method.ITERATIVE
    assert plan(5_000, parameters=0).stages == ()
    assert [stage.rows for stage in plan(5_000, in_stages=False).stages] == [5_000]


def test_an_exact_criterion_is_learned_on_the_rows_that_can_be_factorised():
    chosen = plan(50_000, exact_only=True)
    assert chosen.stages[-1].rows < 10_000
    assert all(stage.method is Method.DIRECT for stage in chosen.stages)
    assert chosen.conditioning.rows == 50_000


def test_memory_decides_and_says_so():
    roomy, tight = plan(2_000, noise=1e-4), plan(2_000, noise=1e-4, memory=60_000_000)
    assert roomy.method is Method.DIRECT
    assert tight.method is Method.ITERATIVE
    assert "60 MB" in tight.reason
    assert all(stage.bytes <= 60_000_000 for stage in (*tight.stages, tight.conditioning))


def test_what_cannot_fit_is_refused_with_a_remedy():
    with pytest.raises(MemoryBudgetExceeded, match="method='iterative'"):
        plan(20_000, options=Options(method=Method.DIRECT), memory=GB)
    with pytest.raises(MemoryBudgetExceeded, match=r"fewer rows or probes, or memory='[0-9]+MB'") as refused:
        plan(1_000_000, memory=200_000_000)
    enough = named_memory(refused.value)
    assert plan(1_000_000, memory=enough).bytes <= enough


@pytest.mark.parametrize("memory", [1, 10**7])
@pytest.mark.parametrize("rows", [20_000, 300_000])
def test_the_memory_that_is_named_is_enough_however_little_there_was(rows, memory):
    """Of little memory less is left for a preconditioner: what that plan needs is not enough for the next one."""
    with pytest.raises(MemoryBudgetExceeded) as refused:
        plan(rows, memory=memory)
    enough = named_memory(refused.value)
    assert plan(rows, memory=enough).bytes <= enough
    with pytest.raises(MemoryBudgetExceeded):
        plan(rows, memory=enough // 2)


def named_memory(error):
    """Return the bytes that a refusal says would do."""
    return int(str(error).rpartition("memory='")[2].partition("MB")[0]) * 1_000_000


def test_exact_traces_come_from_the_inverse_until_that_takes_long():
    few, many = plan(1_000).stages[-1], plan(3_000, noise=1e-4).stages[-1]
    assert few.method is many.method is Method.DIRECT
    assert (few.random_columns, many.random_columns) == (0, 31)
    assert "traces from 31 random columns" in str(many)
    assert "random" not in str(few)
    asked = plan(3_000, noise=1e-4, options=Options(method=Method.DIRECT)).stages[-1]
    assert asked.random_columns == 0, "who asks for the direct method gets the exact gradient"
    assert asked.seconds > 1.5 * many.seconds
    for other in ({"needs_inverse": True}, {"family": Family.LAPLACE}):
        stage = plan(3_000, noise=1e-4, options=Options(method=Method.DIRECT), **other).stages[-1]
        assert stage.random_columns == 0


def test_a_cpu_conditions_in_the_way_it_learns():
    for rows in (500, 4_000, 20_000):
        chosen = plan(rows)
        assert chosen.conditioning.method is chosen.stages[-1].method


def on_gpu(rows, *, d=9, memory=32 * GB, device_memory=75 * GB, **task) -> Plan:
    resources = Resources("triton", "cuda", None, memory, device_memory, Pricing(H200))
    return planned(Workload(rows, d, parameters=d + 2, **task), Options(), resources)


@pytest.mark.parametrize("d", [3, 9, 26, 57])
def test_a_gpu_conditions_by_a_factor_as_long_as_it_fits_the_device(d):
    for rows in (1_000, 13_500, 41_157, 65_000):
        assert on_gpu(rows, d=d).conditioning.method is Method.DIRECT
    for rows in (100_000, 1_000_000):
        large = on_gpu(rows, d=d)
        assert large.conditioning.method is Method.ITERATIVE
        assert large.bytes <= 75 * GB
    assert "the memory is 75 GB" in on_gpu(100_000, d=d).conditioning.reason


def test_neighbours_are_cheap_on_a_gpu_and_trees_on_a_cpu():
    gpu, cpu = (Pricing(profile).costs(250_000, 8, 10, torch.float32) for profile in (H200, TYPICAL))
    assert 0.5 < gpu.local(512, 60) < 1.0
    trees = 5e-8 * 250_000 * 60 * 18
    assert cpu.local(512, 60) == pytest.approx(trees + 250_000 * 61**2 * 572 / (0.6 * 6e10), rel=0.01)
    assert gpu.low_rank(16_384) < 20.0, "measured with a QR factorisation in float64"
    assert gpu.low_rank(4_096) < 0.65 * gpu.low_rank(4_096, beside_neighbours=True)


def test_matrices_on_a_device_need_no_memory_of_the_host():
    small_host, large_host = (on_gpu(41_157, memory=gigabytes * GB) for gigabytes in (4, 400))
    assert small_host.stages == large_host.stages
    assert small_host.conditioning == large_host.conditioning
    small_device = on_gpu(41_157, device_memory=12 * GB)
    assert small_device.conditioning.method is Method.ITERATIVE
    with pytest.raises(MemoryBudgetExceeded, match="on the host"):
        on_gpu(1_000_000, d=57, memory=GB // 3)


def test_a_gpu_factorises_in_learning_what_takes_it_seconds():
    assert on_gpu(4_000).stages[-1].random_columns == 0, "the inverse takes no time"
    hard = on_gpu(20_000, d=57, noise=1e-4).stages[-1]
    assert (hard.method, hard.random_columns) == (Method.DIRECT, 31)
    assert 0.05 < hard.seconds / hard.evaluations < 0.25, "0.12 s were measured, with fewer features"
    assert on_gpu(41_157).stages[-1].random_columns == 31, "should iterating turn out hopeless"
    assert on_gpu(250_000).stages[-1].method is Method.ITERATIVE


def test_a_device_has_a_budget_of_its_own():
    chosen = planned(Workload(2_000, 8, noise=1e-4), Options(), resources(device_memory=60_000_000))
    assert chosen.budget == 60_000_000
    assert chosen.method is Method.ITERATIVE


def test_a_dear_kernel_is_stored_or_factorised():
    dear = KernelPrice(fused=0, seconds=2.0**-23)
    cheap = plan(6_000, options=Options(method=Method.ITERATIVE))
    stored = plan(6_000, options=Options(method=Method.ITERATIVE), price=dear)
    assert cheap.conditioning.storage is Storage.RECOMPUTED
    assert stored.conditioning.storage is Storage.STORED
    assert plan(60_000, price=dear).conditioning.storage is Storage.RECOMPUTED, "it would not fit"
    assert stored.seconds > cheap.seconds


def test_workers_store_what_this_process_could_not():
    dear = Pricing(TYPICAL, KernelPrice(fused=0, seconds=2.0**-23), workers_memory=40 * GB)
    options = Options(method=Method.ITERATIVE)
    there = Resources("dask", "cpu", 2, 8 * GB, None, dear, workers(20))
    here = replace(there, workers=None, pricing=replace(dear, workers_memory=0))
    work = Workload(60_000, 8, parameters=0)
    stored, recomputed = (planned(work, options, one).conditioning for one in (there, here))
    assert (stored.storage, recomputed.storage) == (Storage.STORED, Storage.RECOMPUTED)
    assert stored.bytes == recomputed.bytes, "this process stores nothing"
    assert planned(replace(work, rows=90_000), options, there).conditioning.storage is Storage.RECOMPUTED


def test_workers_change_seconds_and_no_choice():
    alone = Resources("dask", "cpu", 2, 8 * GB, None, Pricing(TYPICAL), None)
    for work in (Workload(60_000, 8), Workload(60_000, 8, family=Family.LAPLACE), Workload(12_000, 8, parameters=0)):
        plans = [planned(work, Options(), replace(alone, workers=workers(count))) for count in (4, 64)]
        plans.append(planned(work, Options(), alone))
        assert plans[0].stages == plans[1].stages
        assert plans[0].conditioning == plans[1].conditioning
        assert [one.patience for one in plans[0].stages] == [one.patience for one in plans[2].stages]
        assert [one.method for one in plans[0].stages] == [one.method for one in plans[2].stages]
    work = Workload(200_000, 8)
    few, many, none = (
        planned(work, Options(), replace(alone, workers=some)) for some in (workers(4), workers(64), None)
    )
    assert many.seconds < few.seconds < none.seconds < 20 * many.seconds
    assert [one.seconds for one in many.stages[:2]] == [one.seconds for one in none.stages[:2]], "few rows stay here"
    fast, slow = many.prediction(10_000).seconds, none.prediction(10_000).seconds
    assert fast < slow
    assert "64 workers, 64 threads, 256 GB, together 64 times as fast as this process" in str(many)
    nobody = planned(work, Options(), replace(alone, workers=Workers(0)))
    assert nobody.seconds == none.seconds


def test_products_are_shared_in_proportion_to_the_rates():
    """Two slow threads and one of twice their rate do in a quarter of the time what a slow one does."""
    fast = replace(TYPICAL, double=PairSeconds(*(0.5 * one for one in astuple(TYPICAL.double))))
    both = Workers(GB, (Rates(1, 2, TYPICAL), Rates(1, 1, fast)))
    n = 20_000
    found = both.seconds(n, lambda rates: n**2 * rates.double(8, 16))
    blocks = dask.number_of_blocks(n)
    assert found == pytest.approx(n**2 * TYPICAL.double(8, 16) / 4 + TASK * (blocks * (blocks + 1) / 2 + blocks))


def test_expectations_grow_with_the_work():
    seconds = [plan(n).seconds for n in (200, 1_000, 5_000, 20_000, 100_000)]
    assert seconds == sorted(seconds)
    assert plan(5_000, d=50).seconds > plan(5_000, d=2).seconds
    assert plan(1_500, family=Family.LAPLACE).seconds > plan(1_500).seconds
    assert plan(800, values=5, family=Family.LAPLACE).bytes > plan(800, family=Family.LAPLACE).bytes


def test_what_a_stage_found_out_holds_for_the_rest():
    chosen = plan(16_000)
    assert chosen.stages[-1].method is Method.ITERATIVE
    revised = chosen.revised(8_000, "forty iterations gained nothing")
    assert revised.stages[-1].method is revised.stages[-2].method is revised.conditioning.method is Method.DIRECT
    assert "8,000 rows on" in revised.revisions[0]
    done = chosen.after(revised, 75.0, 30, 2 * GB)
    assert done.stages == chosen.stages, "what was planned stays"
    assert done.method is Method.DIRECT
    assert "forty iterations" in done.explain()
    tight = plan(16_000, memory=800_000_000).revised(4_000, "not so many rows fit")
    assert tight.conditioning.method is Method.ITERATIVE
    assert revised.revised(8_000, "again") is revised
    asked = plan(16_000, options=Options(method=Method.ITERATIVE))
    assert asked.revised(16_000, "whatever turns out") is asked


def test_little_noise_moves_a_stage_to_exact_evaluations():
    chosen = plan(2_000)
    assert chosen.stages[-1].method is Method.ITERATIVE
    assert reconsidered(chosen, 2_000, 0.1) is chosen, "iterating takes few steps at this noise"
    revised = reconsidered(chosen, 2_000, 1e-4)
    assert revised.stages[-1].method is revised.conditioning.method is Method.DIRECT
    assert revised.stages[:-1] == chosen.stages[:-1]
    assert "from 2,000 rows on, direct: 2000 rows with noise of 0.0001 of the signal" in revised.revisions[0]
    assert chosen.after(revised, 3.0, 20, None).outcome.revisions == revised.revisions


def test_noise_that_is_known_beforehand_decides_at_once():
    little, much = plan(2_000, noise=1e-4), plan(2_000, noise=0.1)
    assert little.stages[-1].method is little.conditioning.method is Method.DIRECT
    assert much.stages[-1].method is much.conditioning.method is Method.ITERATIVE
    assert (little.noise, much.noise, plan(2_000).noise) == (1e-4, 0.1, None)
    assert "with noise of 0.0001 of the signal" in little.reason
    asked = Options(method=Method.ITERATIVE)
    assert plan(20_000, options=asked, noise=1e-3).seconds > 2 * plan(20_000, options=asked, noise=0.1).seconds


def test_checks_in_long_double_are_expected_where_there_is_little_noise():
    directly = Options(method=Method.DIRECT)
    little, much = (plan(700, options=directly, noise=noise).conditioning for noise in (1e-6, 1e-2))
    assert little.seconds > 2 * much.seconds
    assert little.bytes > much.bytes + 10_000_000
    own = KernelPrice(fused=0, seconds=2.0**-28)
    assert (
        plan(700, options=directly, noise=1e-6, price=own).conditioning
        == plan(700, options=directly, noise=1e-2, price=own).conditioning
    ), "a formula of one's own is not known in long double"


def test_conditioning_holds_the_larger_bound_and_learning_the_preconditioner_that_is_made():
    chosen = plan(20_000, noise=0.1)
    learning, conditioning = chosen.stages[-1], chosen.conditioning
    assert learning.method is conditioning.method is Method.ITERATIVE
    few = plan(3_000, noise=0.1, options=Options(method=Method.ITERATIVE), profile=slower(20))
    assert few.conditioning.bytes > few.stages[-1].bytes, "few rows have a bound of high rank"
    tight = plan(20_000, noise=0.1, memory=400_000_000)
    assert max(stage.bytes for stage in (*tight.stages, tight.conditioning)) <= 400_000_000


def test_a_stage_that_was_asked_for_or_cannot_be_otherwise_is_not_reconsidered():
    asked = plan(2_000, options=Options(method=Method.ITERATIVE))
    assert reconsidered(asked, 2_000, 1e-6) is asked
    exact = plan(50_000, exact_only=True)
    assert reconsidered(exact, exact.stages[-1].rows, 1.0) is exact
    tight = plan(2_000, memory=45_000_000)
    assert reconsidered(tight, 2_000, 1e-6) is tight, "a factor would not fit"


def test_many_rows_go_back_to_iterating_after_few_rows_were_given_up():
    revised = plan(40_000, memory=100 * GB).revised(5_000, "forty iterations gained nothing")
    assert revised.stages[-1].method is Method.DIRECT
    again = reconsidered(revised, 40_000, 0.01)
    assert again.stages[-1].method is again.conditioning.method is Method.ITERATIVE
    assert len(again.revisions) == 2
    few = plan(1_600).revised(800, "forty iterations gained nothing")
    assert few.stages[-1].method is Method.DIRECT
    assert reconsidered(few, 1_600, 1e-4) is few, "iterating would not be much cheaper, and has just failed"


def test_a_plan_is_a_value_and_reads_well():
    chosen = plan(5_000, options=Options(precision=Precision.FLOAT64, seed=7))
    assert chosen == plan(5_000, options=Options(precision=Precision.FLOAT64, seed=7))
    assert chosen != plan(5_000, options=Options(seed=8))
    assert "5000 rows, 8 features on cpu by native" in str(chosen)
    done = chosen.after(chosen, 75.0, 30, 2 * GB)
    assert "1 min 15 s, 2 GB at its largest" in done.explain()


@pytest.mark.parametrize(
    ("count", "words"), [(12, "12 bytes"), (3_400, "3.4 kB"), (250e6, "250 MB"), (10.94e9, "10.9 GB")]
)
def test_bytes_in_words(count, words):
    assert in_bytes(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.31, "0.31 s"), (42, "42 s"), (100, "1 min 40 s"), (7260, "2 h 1 min"), (float("inf"), "an unknown time")],
)
def test_time_in_words(seconds, words):
    assert in_time(seconds) == words
