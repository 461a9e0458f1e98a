class Registry:
    """Maps a name to a class; `build` takes a dict with a `type` key."""

    def __init__(self, name):
        self.name = name
        self._items = {}

    def register(self, cls=None, *, name=None):
        def deco(c):
            self._items[name or c.__name__] = c
            return c

        return deco(cls) if cls is not None else deco

    def build(self, cfg, **extra):
        cfg = dict(cfg)
        kind = cfg.pop("type")
        if kind not in self._items:
            raise KeyError(f"{kind} is not in the {self.name} registry")
        return self._items[kind](**cfg, **extra)


MODELS = Registry("model")
DATASETS = Registry("dataset")
HOOKS = Registry("hook")
