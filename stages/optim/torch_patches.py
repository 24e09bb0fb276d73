"""Private names of PyTorch that this project uses, and the check that they are what it expects."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from torch.optim import Optimizer

from stages.system.patches import Patch, check_patches

SUPPORTED = ">=2.10,<2.14"
ADAM = (
    "(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps, "
    "amsgrad, maximize, grad_scale, found_inf)"
)
SGD = (
    "(self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, maximize, "
    "is_first_step, grad_scale, found_inf)"
)
FAST = "the public optimizer spends several times the kernel's time in Python"
HOOKS = "an optimizer with hooks is stepped by its own method; no public function lists the hooks"
MODULE_HOOKS = "a model with hooks is not captured in a CUDA graph; no public function lists them"
FAILED_CAPTURE = "a capture that fails leaves its pool of memory open; no public function closes it"
SCALE = "`GradScaler` scales a loss only through an optimizer, and gradients are returned before that"
COMPILE = "a model that torch.compile wrapped is compiled in place, as `Module.compile` does"

WRAPPER = Patch("torch._dynamo.eval_frame:OptimizedModule", COMPILE, "(mod, dynamo_ctx)", SUPPORTED)
"""The wrapper of `torch.compile`. Only `learner doctor` checks it: its module takes seconds to import."""

PATCHES = (
    Patch("torch:ops.aten._fused_adam_.default", FAST, ADAM, SUPPORTED),
    Patch("torch:ops.aten._fused_adamw_.default", FAST, ADAM, SUPPORTED),
    Patch("torch:ops.aten._fused_sgd_.default", FAST, SGD, SUPPORTED),
    *(
        Patch(f"torch.nn:Module.{name}", MODULE_HOOKS, None, SUPPORTED)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    ),
    Patch("torch:Tensor._post_accumulate_grad_hooks", MODULE_HOOKS, None, SUPPORTED),
    Patch("torch._C:_cuda_endAllocateToPool", FAILED_CAPTURE, None, SUPPORTED),
    Patch("torch._C:_cuda_releasePool", FAILED_CAPTURE, None, SUPPORTED),
    Patch(
        "torch.autograd:Variable._execution_engine",
        "`Tensor.backward` spends 15 µs with its arguments, as long as the pass of a small model",
        None,
        SUPPORTED,
    ),
    Patch(
        "torch:_foreach_norm",
        "the norms of all gradients are computed with one kernel; no public function does",
        None,
        SUPPORTED,
    ),
    Patch(
        "torch:_foreach_mul",
        "gradients are clipped with one kernel; no public function does without norms of its own",
        None,
        SUPPORTED,
    ),
    Patch(
        "torch:_foreach_copy_",
        "all gradients are copied to the tensor that ranks exchange with one call; no public function does",
        None,
        SUPPORTED,
    ),
    Patch(
        "torch:ops.aten._amp_foreach_non_finite_check_and_unscale_.default",
        SCALE,
        "(self, found_inf, inv_scale)",
        SUPPORTED,
    ),
    Patch(
        "torch:ops.aten._amp_update_scale_.default",
        SCALE,
        "(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval)",
        SUPPORTED,
    ),
    Patch(
        "torch:Tensor._version",
        "a value that several metrics share is computed again if a tensor was changed in place",
        None,
        SUPPORTED,
    ),
    Patch(
        "torch.utils._pytree:tree_leaves",
        "the shapes of a batch of any type are compared; no public function lists its tensors",
        "(tree, is_leaf=None)",
        SUPPORTED,
    ),
    Patch(
        "torch._compile:_disable_dynamo",
        "its wrapper imports the compiler, which takes a second, when an optimizer is created",
        "(fn=None, recursive=True)",
        SUPPORTED,
    ),
    Patch(
        "torch.optim.lr_scheduler:LRScheduler.step",
        "it reads `_opt_called` of the optimizer and warns if only a kernel was called",
        "(self, epoch=None)",
        SUPPORTED,
    ),
    Patch("torch.optim.optimizer:_global_optimizer_pre_hooks", HOOKS, None, SUPPORTED),
    Patch("torch.optim.optimizer:_global_optimizer_post_hooks", HOOKS, None, SUPPORTED),
    Patch("torch.optim:Optimizer._optimizer_step_pre_hooks", HOOKS, None, SUPPORTED),
    Patch("torch.optim:Optimizer._optimizer_step_post_hooks", HOOKS, None, SUPPORTED),
    WRAPPER,
    Patch("torch.nn:Module._call_impl", COMPILE, "(self, *args, **kwargs)", SUPPORTED),
    Patch("torch.nn:Module._compiled_call_impl", COMPILE, None, SUPPORTED),
    Patch("torch.nn:Module._modules", COMPILE, None, SUPPORTED),
    Patch(
        "torch.nn:Module._buffers",
        "recomputing activations must not change running statistics; no public function swaps buffers",
        None,
        SUPPORTED,
    ),
    Patch(
        "torch.utils.data:DataLoader._iterator",
        "persistent workers are restarted for each epoch; no public function ends them",
        None,
        SUPPORTED,
    ),
)
DYNAMO_MARK = "__dynamo_disable"


@cache
def check() -> None:
    """Raise `StageError` if a private name is missing or has another signature; check once per process."""
    check_patches(patch for patch in PATCHES if patch is not WRAPPER)


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Prevent the creation, saving and loading of optimizers from importing PyTorch's compiler.

    PyTorch wraps some methods of `Optimizer` so that the compiler skips them. At its first call a wrapper
    imports ``torch._dynamo`` to create the function that it then stores in an attribute. Within this context
    that attribute already holds the plain method. If PyTorch does not wrap the methods, nothing changes.
    """
    names = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")
    wrapped = [vars(vars(Optimizer)[name]).get("__wrapped__") for name in names]
    marked = [method for method in wrapped if method is not None and DYNAMO_MARK not in vars(method)]
    for method in marked:
        setattr(method, DYNAMO_MARK, method)
    try:
        yield
    finally:
        for method in marked:
            delattr(method, DYNAMO_MARK)
