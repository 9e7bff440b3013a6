"""`grpo-run`: parse first, import torch after."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from grpo_runner.config import Config
    from vismaze_hooks import Plugins

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Multi-turn GRPO for vision-language agents.",
)
config_app = typer.Typer(no_args_is_help=True, help="Look at configurations.")
app.add_typer(config_app, name="config")

ConfigFile = Annotated[Path, typer.Argument(help="a TOML file", metavar="CONFIG.toml")]
Overrides = Annotated[list[str] | None, typer.Argument(help="overrides, such as train.lr=3e-4", metavar="[key=value …]")]
Address = Annotated[
    str | None,
    typer.Option(help="the cluster, such as http://HEAD:8265; by default as RAY_ADDRESS says, or the one on this machine"),
]
JobId = Annotated[str, typer.Argument(metavar="JOB")]
USER_ERROR, SIGNALLED, INTERRUPTED = 2, 128, 130


@contextmanager
def messages() -> Iterator[None]:
    """Turn what a user can mend into one message and exit code 2, a signal into 128 + its number; other errors keep their
    traceback, and exit with 1."""
    from grpo_runner.errors import USER_ERRORS
    from grpo_runner.stopping import Stopped

    try:
        yield
    except Stopped as stopped:
        _say("what was committed is kept, and the same command continues from there")
        raise typer.Exit(SIGNALLED + stopped.number) from None
    except KeyboardInterrupt:  # before there was anything to save
        _say("interrupted; what was committed is kept, and the same command continues from there")
        raise typer.Exit(INTERRUPTED) from None
    except USER_ERRORS as error:
        _say(f"error: {error}")
        raise typer.Exit(USER_ERROR) from error


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _open(path: Path, overrides: list[str] | None) -> tuple[Config, Plugins]:
    from grpo_runner.config import ConfigError, load
    from vismaze_hooks import load_plugins

    config = load(path, overrides or ())
    try:
        return config, load_plugins(config.plugins, folder=path.resolve().parent)
    except ImportError as error:
        raise ConfigError(f"plugins: {error}") from error


def _settle() -> None:
    """Settle into a process of our own: cores shared by micro-batch, the libraries' chatter silenced (warnings stay)."""
    import torch
    import transformers

    from grpo_runner.lanes import open_lanes

    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("default")
    if not torch.cuda.is_available():
        open_lanes()
    gc.collect()
    gc.freeze()  # the libraries' million objects need not be looked at again in every collection
    gc.set_threshold(50_000)  # a rollout makes a hundred thousand records that live until the step ends: garbage is rare


def _teller(steps: int) -> tuple[Callable[[str], None], Callable[[], None]]:
    """Return a function that reports one line of progress, and one that ends the display."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        return (lambda line: print(line, file=sys.stderr, flush=True)), (lambda: None)
    bar = Progress(
        TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console, transient=True
    )
    task = bar.add_task("training", total=steps)
    bar.start()

    def tell(line: str) -> None:
        bar.console.print(line, highlight=False)
        if line.startswith("step "):
            bar.update(task, completed=int(line.split()[1].split("/")[0]))

    return tell, bar.stop


@app.command()
def train(config: ConfigFile, overrides: Overrides = None) -> None:
    """Train; the same command again continues where the run folder stands."""
    with messages():
        settings, plugins = _open(config, overrides)
        _settle()
        from grpo_runner.main_job import run_training

        tell, end = _teller(settings.run.steps)
        try:
            lines = run_training(settings, plugins, tell)
        finally:
            end()
        if lines:
            print("\n".join(lines))


@app.command()
def sft(config: ConfigFile, overrides: Overrides = None) -> None:
    """Build the base model and warm-start it on solver demonstrations, as `train` would do first."""
    with messages():
        settings, plugins = _open(config, overrides)
        _settle()
        from grpo_runner.base_model import ensure_base
        from grpo_runner.session import find_environment

        record = ensure_base(settings, find_environment(settings, plugins), _say)
        print(f"{settings.model.path}  sha256 {record['identity']}")


@app.command(name="eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="a run folder, or a configuration when a server is evaluated", metavar="RUN")],
    tasks: Annotated[str | None, typer.Option("--set", help="fixed set; the run's own by default")] = None,
    adapter: Annotated[Path | None, typer.Option(help="adapter folder; the run's newest export by default")] = None,
    base: Annotated[bool, typer.Option("--base", help="evaluate the base model without an adapter")] = False,
    samples: Annotated[int, typer.Option(help="sampled episodes of each task")] = 0,
    out: Annotated[Path | None, typer.Option(help="write each episode here at once; what is there is not played again")] = None,
    engine: Annotated[str | None, typer.Option(help="local, vllm or openai; the run's own by default")] = None,
    base_url: Annotated[str | None, typer.Option(help="openai: the server, such as http://127.0.0.1:8000/v1")] = None,
    model: Annotated[str | None, typer.Option(help="openai: what the server calls the model")] = None,
    concurrency: Annotated[int, typer.Option(help="openai: turns that are asked at once")] = 8,
    retries: Annotated[int, typer.Option(help="openai: of one turn")] = 4,
    timeout: Annotated[float, typer.Option(help="openai: seconds of one try")] = 120.0,
) -> None:
    """Evaluate a run's adapter, or any OpenAI-compatible server, on a fixed set. A server's key is read from OPENAI_API_KEY."""
    with messages():
        from grpo_runner.config import ConfigError

        overrides = [f"rollout.engine={engine}", "rollout.engine_options={}"] if engine else []
        if engine == "openai":
            if not base_url or not model:
                raise ConfigError("--engine openai needs --base-url and --model")
            options = {"base_url": base_url, "served_model": model, "concurrency": concurrency, "retries": retries}
            overrides += [f"rollout.engine_options.{k}={v!r}" for k, v in {**options, "timeout": timeout}.items()]
        elif base_url or model:
            raise ConfigError("--base-url and --model are for --engine openai")
        settings, plugins = _open(run if run.is_file() else run / "config.toml", overrides)
        _settle()
        from grpo_runner.main_job import run_evaluation

        lines = run_evaluation(run, settings, plugins, set_name=tasks, adapter=adapter, base=base, samples=samples, out=out)
        print("\n".join(lines))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="a run folder", metavar="RUN")],
    adapter: Annotated[Path | None, typer.Option(help="adapter folder; the best of the run's exports by default")] = None,
    name: Annotated[str, typer.Option(help="what requests call the adapter")] = "policy",
    port: Annotated[int, typer.Option(help="on 127.0.0.1")] = 8000,
) -> None:
    """Serve a run's best adapter with vLLM on 127.0.0.1. What follows `--` goes to `vllm serve` as it is."""
    with messages():
        settings, _ = _open(run / "config.toml", None)
        from grpo_runner.serve import best_export, serve, serve_command

        where, rate = (adapter, None) if adapter else best_export(run)
        _say(f"adapter {where}" + (f", {rate:.1%} solved in the run's evaluation" if rate is not None else ""))
        command = serve_command(settings, where, name=name, port=port, extra=context.args)
        raise typer.Exit(serve(command, name=name, port=port, tell=_say))


@app.command()
def submit(
    config: ConfigFile,
    overrides: Overrides = None,
    address: Address = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME[=value]", help="a variable for the job; again for more")
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, help="times to submit again when the driver is killed or its node is lost")
    ] = 3,
    grace: Annotated[int, typer.Option(min=0, help="seconds that a stopped job has for its last checkpoint")] = 600,
) -> None:
    """Train as a job of a Ray cluster: stream its log, return its exit code. Ctrl-C leaves the job running."""
    with messages():
        from grpo_runner import jobs
        from grpo_runner.config import load

        settings = load(config, overrides or ())
        plan = jobs.plan(config, settings, overrides or (), address=address, environment=env or (), grace=grace)
        raise typer.Exit(jobs.run(plan, retries=retries, tell=_say, write=_write))


@app.command()
def status(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="one job; all by default")] = None,
    address: Address = None,
    follow: Annotated[bool, typer.Option("--follow", help="stream the job's log, return its exit code")] = False,
) -> None:
    """List the jobs of a Ray cluster: id, state, step, run folder."""
    with messages():
        from grpo_runner import job_server, jobs
        from grpo_runner.config import ConfigError

        if follow and job is None:
            raise ConfigError("--follow needs a job")
        client = job_server.connect(address)
        found = job_server.jobs(client) if job is None else [job_server.find(client, job)]
        print("\n".join(job_server.line(j) for j in found) or "no jobs", flush=True)
        if follow:
            raise typer.Exit(jobs.watch(address, str(job), tell=_say, write=_write))


@app.command()
def stop(job: JobId, address: Address = None) -> None:
    """End a job of a Ray cluster: the run saves where it stands, and the same `submit` goes on from there."""
    with messages():
        from grpo_runner import job_server

        print(job_server.line(job_server.stop(job_server.connect(address), job, _say)))


@app.command()
def report(run: Annotated[Path, typer.Argument(help="a run folder", metavar="RUN")]) -> None:
    """Write a run's report.html anew."""
    with messages():
        settings, plugins = _open(run / "config.toml", None)
        from grpo_runner.main_job import make_report

        print(make_report(run, settings, plugins))


@app.command()
def plugins() -> None:
    """List what is installed: plugins, what they offer, and what could not be loaded."""
    from rich.console import Console
    from rich.table import Table

    from vismaze_hooks import load_plugins

    with warnings.catch_warnings(), messages():
        warnings.simplefilter("ignore")  # problems are listed below
        found = load_plugins()
        table = Table("kind", "name", "plugin", "from")
        for kind, offers in found.offers.items():
            for name in sorted(offers):
                owner = found.owners[kind, name]
                table.add_row(kind, name, owner, found.origins.get(owner, "?"))
        Console().print(table)
        for problem in found.problems:
            _say(f"could not load {problem.plugin} ({problem.origin}): {problem.error}")
        if found.problems:
            raise typer.Exit(1)


@config_app.command()
def show(
    config: Annotated[Path | None, typer.Argument(help="a TOML file; without it the defaults", metavar="[CONFIG.toml]")] = None,
    overrides: Overrides = None,
) -> None:
    """Print every key with its meaning and its value."""
    from grpo_runner.config import describe, flat, load

    with messages():
        values = dict(flat(load(config, overrides or ()))) if config else {}
        for key, info in describe():
            default = "required" if info.is_required() else repr(info.get_default(call_default_factory=True))
            value = repr(values[key]) if key in values else default
            print(f"{key} = {value}\n    {info.description or ''}")


if __name__ == "__main__":
    app()
