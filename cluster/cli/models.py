"""Converting the built-in models before anything starts, so that workers find them ready."""

from __future__ import annotations

from actors.loading.builtin import BuiltinModelError, builtin_path, is_builtin
from actors.spec import EMULATED
from cluster.cli.output import CommandError
from cluster.config import Config


def prepare(config: Config) -> None:
    """Convert every built-in model of the ladder into the local cache (progress on stderr), once.

    Raises `CommandError` when a model or a package is missing.
    """
    names = {spec.model.removeprefix(EMULATED) for spec in config.model_specs()}
    for name in filter(is_builtin, names):
        try:
            builtin_path(name)
        except BuiltinModelError as error:
            raise CommandError(str(error)) from error
