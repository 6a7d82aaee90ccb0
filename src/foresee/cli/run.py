"""foresee run: active learning experiments, resumed where they stopped."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, cast

import typer
from rich.live import Live
from rich.text import Text

from foresee.cli.console import FILE, FOLDER, LOSS_HELP, cores, note, on_stderr, progress_bar, stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foresee.lab.experiment import Experiment, Network, Setting
    from foresee.lab.runner import Job, Place

    # Experiments to run and, where no option says so, their methods and how many seeds.
    _Asked: TypeAlias = tuple[Sequence[Experiment], Sequence[str], int]

Precision = StrEnum("Precision", ["float32", "bfloat16"])
NetworkName = StrEnum("NetworkName", ["vgg16", "small_cnn", "slim_cnn", "mlp"])


def run(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help="A data set, `paper` for all the paper's, or experiment.toml for your own, which "
            "has its own settings, methods and seeds: see foresee init.",
        ),
    ],
    shift: Annotated[bool, typer.Option("--shift", help="Start from another domain.")] = False,
    no_shift: Annotated[
        bool, typer.Option("--no-shift", help="Start from the domain of the target.")
    ] = False,
    narrow: Annotated[
        bool,
        typer.Option(
            "--narrow",
            help="Aim at some classes of the pool alone, or one domain. [default: all three "
            "settings; of `paper` its two]",
        ),
    ] = False,
    pool_noise: Annotated[
        float | None,
        typer.Option(metavar="F", help="Scramble this share of the pool's images. [default: 0]"),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Separated by commas: methods, `paper` for its eight, `all`, or file.py:function. "
            "[default: paper,mebl,default]",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Trials of each method. [default: 10 × budget, at most 10]"
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Trials at once; on a GPU they train side by side."),
    ] = 1,
    data: Annotated[
        Path | None, typer.Option(metavar=FOLDER, help="Where the data sets are.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar=FOLDER, help="Where rounds go; what is there is kept.")
    ] = Path("runs"),
    budget: Annotated[
        float, typer.Option(metavar="F", help="Scales training iterations and seeds.")
    ] = 1.0,
    network: Annotated[
        NetworkName | None, typer.Option(help="[default: that of the experiment]")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, …")] = "cpu",
    precision: Annotated[
        Precision | None,
        typer.Option(help="Of the passes through the network. [default: float32]"),
    ] = None,
    loss: Annotated[Path | None, typer.Option(metavar=FILE, help=LOSS_HELP)] = None,
    splits: Annotated[
        Path | None,
        typer.Option(metavar=FOLDER, help="Take the splits that another run wrote there."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar=FOLDER, help="Where decoded images go. [default: beside the data]"),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run trials as tasks of a Ray cluster, or of one started here: local. --jobs is "
            "then for each machine, or GPU; all must see the same folders.",
        ),
    ] = None,
) -> None:
    """Run active learning experiments; stop at any moment, run the same again to go on."""
    from foresee.lab import methods as known, runner

    names = (
        None
        if methods is None
        else known.named(methods.split(","), "--methods", with_loss=loss is not None)
    )
    processes = jobs if device == "cpu" or ray is not None else 1
    place = runner.Place(
        out, data, _device(device, ray), max(1, cores() // processes), splits, cache
    )
    chosen = {"--no-shift": no_shift, "--shift": shift, "--narrow": narrow}
    if dataset.lower().endswith(".toml"):
        by_name = {**chosen, "--data": data, "--network": network, "--precision": precision}
        for option in (option for option, value in by_name.items() if value):
            stop(f"error: {option} is for data sets by name: {dataset} says that", code=2)
        asked, place = _own_experiments(Path(dataset), place, budget)
    else:
        settings = _settings(dataset, chosen)
        asked = _known_experiments(dataset, settings, budget, network, precision, place)
    experiments, usual, number = asked
    names = names or list(usual)
    if pool_noise is not None:
        from foresee.lab.experiment import noisy

        experiments = [noisy(e, pool_noise) for e in experiments]
    if loss is not None:
        from foresee.suggest import read_loss

        experiments = [replace(e, loss=read_loss(loss, e.classes)) for e in experiments]
        if "EER" not in names:
            note("--loss changes what is reported, not what is picked: --methods eer minimises it")
    elif "EER" in names:
        stop("error: --methods eer needs --loss: pass what errors cost as a CSV", code=2)
    run_jobs(runner.plan(experiments, names, range(seeds or number)), place, jobs, ray)
    next_ = f"next: foresee report {quote(str(out))} -o report"
    on_stderr().print(Text(next_), soft_wrap=True)


def _settings(dataset: str, given: dict[str, bool]) -> "tuple[Setting, ...]":
    """The settings to run: the one that an option names, or all; of the paper, its two."""
    chosen = [option for option, on in given.items() if on]
    if len(chosen) > 1:
        stop(f"error: {' and '.join(chosen)} exclude each other: pass one of them", code=2)
    every: tuple[Setting, ...] = ("noshift", "shift", "narrow")
    if chosen:
        return (every[list(given).index(chosen[0])],)
    return every[:2] if dataset.lower() == "paper" else every


def _known_experiments(
    dataset: str,
    settings: "Sequence[Setting]",
    budget: float,
    network: NetworkName | None,
    precision: Precision | None,
    place: "Place",
) -> "_Asked":
    from foresee.lab import methods, paper

    wanted = dataset.lower()
    chosen = paper.datasets(ours=False) if wanted == "paper" else (wanted,)
    if chosen[0] not in paper.datasets():
        stop(
            f"error: DATASET must be paper, a .toml file, or one of {', '.join(paper.datasets())}, "
            f"got {dataset}",
            code=2,
        )
    experiments = [
        paper.experiment(
            name,
            setting == "shift",
            budget,
            cast("Network | None", network and network.value),
            narrow=setting == "narrow",
        )
        for name in chosen
        for setting in settings
    ]
    if precision is not None:
        passes = cast("Literal['float32', 'bfloat16']", precision.value)
        experiments = [replace(e, recipe=replace(e.recipe, precision=passes)) for e in experiments]
    for name in chosen:
        _prepare(name, place.data, place.cache)
    seeds = max(1, round(paper.SEEDS * min(1.0, budget)))
    return experiments, methods.named(["paper", "mebl", "default"], "--methods"), seeds


def _own_experiments(file: Path, place: "Place", budget: float) -> "tuple[_Asked, Place]":
    from foresee.lab import config

    with progress_bar() as bar:
        task = bar.add_task(f"reading {file}", total=None)
        found = config.read(
            file,
            place.cache,
            lambda done, total: bar.update(
                task, completed=done, total=total, description="decoding images"
            ),
        )
    experiments = found.experiments
    if budget != 1:
        own = experiments[0].own
        if own is not None and own.posterior != "dropout":
            stop(
                f"error: --budget scales the training of networks, and {file} has posterior = "
                f'"{own.posterior}": leave it out',
                code=2,
            )
        experiments = tuple(
            replace(e, recipe=e.recipe.scaled(budget), budget=budget) for e in experiments
        )
    place = replace(place, data=found.data, home=found.home)
    return (experiments, found.methods, found.seeds), place


def _prepare(dataset: str, folder: Path | None, cache: Path | None) -> None:
    """Find out before any training whether a data set can be read; decode its images once."""
    from foresee.lab import data, runner

    if folder is None and dataset != "digits":
        stop(
            f"error: --data is needed for {dataset}: pass the folder that holds it, or see foresee "
            f"data get {dataset}",
            code=2,
        )
    with progress_bar() as bar:
        task = bar.add_task(f"reading {dataset}", total=None)
        if needed := data.decoding_bytes(dataset, folder, cache=cache):
            bar.console.print(f"{dataset}: decoding images into {needed / 2**30:.1f} GiB, once")
            data.load(
                dataset,
                folder,
                cache=cache,
                advance=lambda done, n: bar.update(task, completed=done, total=n),
            )
        runner.read(dataset, folder, cache)


def run_jobs(jobs: "Sequence[Job]", place: "Place", workers: int, ray: str | None = None) -> None:
    """Run the jobs, here or on Ray, show how far they are, and fail if one did."""
    from foresee.lab import live, runner, store
    from foresee.lab.methods import short_name

    console = on_stderr()
    runner.keep_plan(jobs, place.out, lambda problem: note(f"written anew: {problem}"))
    board = live.Board(jobs, place.out, workers)
    if not console.is_terminal:  # where no board moves
        told = f"{len(jobs)} trials; foresee status {quote(str(place.out))} tells how far they are"
        console.print(Text(told), soft_wrap=True)
    failed = Counter[str]()
    screen = Live(
        get_renderable=lambda: board, console=console, refresh_per_second=2, transient=True
    )
    with screen if console.is_terminal else nullcontext():
        for outcome in runner.run_all(jobs, place, workers, ray):
            job = outcome.job
            name = f"{job.experiment.name} {job.method} seed {job.seed}"
            if outcome.state == "failed":
                path = store.trial_path(place.out, job.experiment, short_name(job.method), job.seed)
                same = outcome.message.replace(str(path), "")
                if same not in failed:  # what fails one often fails all: said once
                    text = Text(f"{name} failed: {outcome.message}", style="red")
                    console.print(text, soft_wrap=True)
                failed[same] += 1
            elif not console.is_terminal:
                accuracy = live.standing(job, place.out).accuracy
                text = Text(f"{name} finished, accuracy {100 * (accuracy or 0):.1f} %")
                console.print(text, soft_wrap=True)
    if number := failed.total():
        others = "; the others are kept" if number < len(jobs) else ""
        stop(f"{number} of {len(jobs)} trials failed{others}", code=1)


def _device(name: str, ray: str | None) -> str:
    import torch

    if ray is not None and name in ("cpu", "cuda"):
        return name  # which GPU, and whether there is one, is the cluster's to say

    if name.startswith("cuda") and not torch.cuda.is_available():
        stop(f"error: --device {name}, but torch sees no GPU: use --device cpu", code=2)
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if name not in ("cpu", "cuda", *gpus):
        here = ", ".join(["cpu", *gpus])
        stop(f"error: --device must be cpu, cuda or cuda:N (here {here}), got {name}", code=2)
    return name
