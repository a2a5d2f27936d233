"""The parts of a method that the training loop calls, and how."""

from inspect import isfunction, signature

from remnant.options import OptionError

# Some are called only after a whole task, so a mistake is found when the class is made.
HOOKS = {
    "start": ("task",),
    "loss": ("x", "y"),
    "gradients": ("loss",),
    "step": ("x", "y"),
    "finish": ("task", "train"),
    "logits": ("x", "task"),
}


def check_hooks(method: type) -> None:
    """Refuses hooks that the training loop could not call."""
    for name, arguments in HOOKS.items():
        hook = getattr(method, name)
        if not isfunction(hook):  # such as a class method, or what some decorators return
            continue
        form = signature(hook)
        try:
            form.bind(None, *arguments)
        except TypeError:
            raise OptionError(
                f"{method.__name__}.{name} must take (self, {', '.join(arguments)}), and it takes "
                f"({', '.join(form.parameters)})."
            ) from None
