"""`outrider generate`: send a prompt to a running service and print the answer as it comes."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.text import Text

from cluster.cli import client, reach
from cluster.cli.output import CommandError, guard, stderr, stdout
from cluster.rpc import outrider_pb2 as pb

STYLES = {
    pb.ORIGIN_ACCEPTED: "green",
    pb.ORIGIN_RECOVERED: "red",
    pb.ORIGIN_BONUS: "cyan",
    pb.ORIGIN_PLAIN: "default",
}
MARKS = {
    pb.ORIGIN_ACCEPTED: "a",
    pb.ORIGIN_RECOVERED: "r",
    pb.ORIGIN_BONUS: "b",
    pb.ORIGIN_PLAIN: "p",
}


def generate(
    prompt: Annotated[str, typer.Argument(help="What to say to the model; - reads standard input.")],
    address: Annotated[str, typer.Option(help="host:port of the gRPC service.")] = "127.0.0.1:9000",
    tls: reach.Tls = False, tls_ca: reach.TlsCa = None, cert: reach.Cert = None, key: reach.Key = None,
    token_env: reach.TokenEnv = None,
    chat: Annotated[bool, typer.Option("--chat/--raw", help="A user's turn, or text to continue.")] = True,
    system: Annotated[str | None, typer.Option(help="System turn before the prompt (with --chat).")] = None,
    temperature: Annotated[float | None, typer.Option(help="0: greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Keep the k most probable tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the best tokens up to this mass.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Keep tokens this probable, next to the best.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same text.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens to generate at most.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the text here; may be repeated.")] = None,
    lookahead: Annotated[int | None, typer.Option(min=1, help="Draft tokens per round.")] = None,
    no_speculation: Annotated[bool, typer.Option("--no-speculation", help="The target alone.")] = False,
    lossy: Annotated[
        bool | None, typer.Option("--lossy/--exact", help="By the server's lossy policy, or exact; else its default.")
    ] = None,
    show_origin: Annotated[bool, typer.Option("--show-origin", help="Show where tokens came from.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Deadline of the request, seconds.")] = 600.0,
) -> None:
    """Send a prompt and stream the answer; figures follow on standard error."""
    with guard():
        if system is not None and not chat:
            raise CommandError("--system needs a conversation; remove --raw")
        if no_speculation and lookahead is not None:
            raise CommandError("--lookahead and --no-speculation contradict each other; remove one")
        options = client.Options(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, max_tokens=max_tokens,
            stop=tuple(stop or ()), lookahead_tokens=lookahead, speculation=not no_speculation,
            lossy=lossy,
        )  # fmt: skip
        try:
            message = client.request(
                sys.stdin.read() if prompt == "-" else prompt, options, chat=chat, system=system
            )
        except ValueError as error:  # a number that the field's type cannot hold
            raise CommandError(f"a value is out of range: {error}; choose a smaller one") from error
        with client.connect(reach.service(address, tls, tls_ca, cert, key, token_env)) as stub:
            if as_json:
                answer = client.stream(stub, message, timeout_s)
                outcome = {**answer.as_json(), "emulated": client.is_emulated(stub)}
                print(json.dumps(outcome, ensure_ascii=False))
                return
            try:
                answer = client.stream(stub, message, timeout_s, print_origin if show_origin else print_text)
            finally:
                stdout.print()  # an error starts its own line
            emulated = " · EMULATED devices, no model ran" if client.is_emulated(stub) else ""
        stderr.print(figures(answer) + emulated, style="dim")


def print_text(chunk: pb.GenerateChunk) -> None:
    """Show a chunk's text at once."""
    stdout.out(chunk.text, end="")
    stdout.file.flush()


def print_origin(chunk: pb.GenerateChunk) -> None:
    """Show a chunk's text in the colour of its first token, then what it consists of, e.g. <3a 1b>.

    A chunk's text need not divide at its tokens (a character may span two), so tokens are counted, not cut.
    """
    origins = [token.origin for token in chunk.tokens]
    if chunk.text:
        stdout.print(Text(chunk.text, style=STYLES.get(origins[0], "default") if origins else ""), end="")
    if origins:
        counts = " ".join(f"{origins.count(o)}{mark}" for o, mark in MARKS.items() if o in origins)
        stdout.print(Text(f"<{counts}>", style="dim"), end="")
    stdout.file.flush()


def figures(answer: client.Completion) -> str:
    """One line: why it ended, how many tokens, how fast, how speculation went."""
    usage, speculation = answer.finish.usage, answer.finish.speculation
    reason = pb.FinishReason.Name(answer.finish.reason).removeprefix("FINISH_REASON_")
    parts = [
        reason.lower().replace("_", " "),
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens",
        f"first after {answer.first_s:.2f} s",
        f"{answer.tokens_per_s:.1f} tokens/s",
        f"{speculation.num_rounds} rounds",
        f"MAT {speculation.mean_committed_tokens:.2f}",
    ]
    if answer.acceptance is not None:
        kept = f"{speculation.num_accepted}/{speculation.num_drafted}"
        parts.append(f"accepted {kept} ({answer.acceptance:.0%})")
    if answer.finish.HasField("lossy_policy"):
        parts.append(f"LOSSY ({answer.finish.lossy_policy}, {speculation.num_relaxed} tokens the target refuses)")
    parts.extend(f"{reason} ({count})" for reason, count in speculation.num_degraded_by_reason.items())
    return " · ".join(parts)
