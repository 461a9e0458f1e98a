from . import criterions, models, tasks  # noqa: F401  (fill the registries)
