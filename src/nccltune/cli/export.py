"""`nccltune export`."""

from __future__ import annotations

import click

FORMATS = [
    *("env", "docker", "nccl-conf", "slurm", "k8s", "json", "python"),
    *("torchrun", "accelerate", "lightning", "hf-trainer"),
]


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--format", "format", type=click.Choice(FORMATS), required=True, help="See above.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Written in one rename, in place of a file of that name. By default, and for -, stdout.",
)
def export(file: str, format: str, output: str | None) -> None:
    """Write a result in the words of another program.

    FILE is a best.yaml or best-batch.yaml of a study, or the study's folder.

    \b
    env         export lines for a shell:  . FILE
    docker      docker run --env-file FILE
    nccl-conf   NCCL's own file: ~/.nccl.conf, /etc/nccl.conf, NCCL_CONF_FILE
    slurm       lines for a job script, below its #SBATCH lines
    k8s         a ConfigMap for envFrom:  kubectl apply -f FILE
    json        everything as data
    python      a module with env, ddp_kwargs, loader_kwargs, batch_size
    torchrun    a command to which the script is added
    accelerate  accelerate launch --config_file FILE; the rest as comments
    lightning   a module with strategy, a DDPStrategy, and loader_kwargs
    hf-trainer  arguments for a script with TrainingArguments

    The first five hold environment variables alone. What a format has no place for is told on
    stderr and, where it has comments, in them; so are the study, the machine and the verdict.
    `nccltune run` passes all of a result to a job. A value that a format cannot hold as it is gets
    refused (exit code 2), and nothing is written.
    """
    from nccltune.cli.exporting import run_export

    run_export(file, format, output)
