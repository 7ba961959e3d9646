"""Which suites there are: other people's packages by name and version, and what of each is run."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Suite:
    name: str  # of the package
    version: str  # "": comes with torch
    tests: tuple = ()  # files and folders of the source package's own tests; with "programs/" before them, of tests/suites
    needs: tuple = ()  # what else its environment gets, with versions; nothing that asks for a torch of its own is installed with its dependencies
    builds: tuple = ()  # what building the source package takes that pip does not find by itself
    prepare: tuple = ("torchvision",)  # of the plugin's preparations
    leave_out: dict = dataclasses.field(default_factory=dict)  # a part of a test's name, and the reason why it is not run
    dtype: str = ""
    dropout: str = "off"
    patience: int = 20  # seconds of the processor's for a test of the plain run
    installed: bool = True  # False: imported from the unpacked source package
    arguments: tuple = ()  # for pytest
    environment: dict = dataclasses.field(default_factory=dict)
    looked_at: dict = dataclasses.field(default_factory=dict)  # a part of a test's name, and why it may go another way than the plain run
    what: str = "its tests"  # for the table


EINOPS = "einops==0.8.2"
LUCID = (EINOPS, "einx==0.4.3", "loguru==0.7.3", "torch-einops-utils==0.2.0", "frozendict==2.5.1")

SUITES = {suite.name: suite for suite in (
    Suite("torch.optim", "", ("programs/optim_db.py",), dtype="float64", what="every optimizer of `optim_db` with each of its inputs"),
    Suite("einops", "0.8.2", ("einops/tests",), leave_out={"torch_compile": "compiles"}, environment={"EINOPS_TEST_BACKENDS": "numpy,torch"}),
    Suite("vit-pytorch", "1.26.11", ("tests", "programs/readme.py"), needs=(EINOPS,), dtype="float64",
          what="its tests, and the programs of its README in small"),
    Suite("x-transformers", "2.31.10", ("programs/readme.py",), needs=LUCID, dtype="float64", what="the programs of its README in small"),
    Suite("vector-quantize-pytorch", "1.32.0", ("programs/readme.py",), needs=LUCID, dtype="float64",
          looked_at={"test_program[17]": "asserts that two ways to compute a quantization agree in every bit; in micro-batches they do to 3e-16"}, what="the programs of its README in small"),
    Suite("denoising-diffusion-pytorch", "2.3.4", ("programs/readme.py",), needs=(EINOPS, "ema-pytorch==0.8.3", "pytorch-fid==0.3.0"),
          dtype="float64", environment={"SUITES_SMALLER": "1"}, what="the programs of its README in small"),
    Suite("pytorch-metric-learning", "2.9.0", ("programs/metric_learning.py",), dtype="float64", what="every loss, with miners, reducers and distances"),
    Suite("torch-geometric", "2.8.1", ("programs/geometric.py",), needs=("pyparsing==3.3.3", "requests==2.34.2", "xxhash==4.1.0", "urllib3==2.8.0", "charset-normalizer==3.5.2", "certifi==2026.10.18"),
          dtype="float64", leave_out={"RGATConv": "has a parameter that nobody writes to"},
          what="layers, aggregations, poolings, normalisations, models"),
    Suite("kornia", "0.9.0", ("programs/images.py",), needs=("kornia_rs==0.2.0",), dtype="float64", what="losses, filters, enhancement, colour, morphology, geometry, augmentation"),
    Suite("timm", "1.0.31", ("programs/timm_models.py", "tests/test_optim.py", "tests/test_layers.py", "tests/test_layers_pool.py", "tests/test_layers_drop.py", "tests/test_layers_pos_embed.py",
                             "tests/test_task.py", "tests/test_input_conv.py"), leave_out={"compile": "compiles", "script": "compiles"},
          looked_at={"rotary_apply_output_dtype_and_rounding": "compares gradients with torch.equal: equal to rounding, and not in every bit"},
          what="its tests of layers, optimizers and tasks, and a small model of every family"),
    Suite("skorch", "1.4.0", ("skorch/tests",), needs=("tabulate==0.10.0", "flaky==3.8.1", "pandas==3.1.1", "python-dateutil==4.0.0", "six==1.17.0"), arguments=("-p", "flaky.flaky_pytest_plugin"),
          leave_out={"test_hf": "wants the network", "test_llm": "wants the network", "test_cli": "no backward pass", "multiprocess": "other processes", "compile": "compiles"}),
    Suite("stable-baselines3", "2.9.2", ("tests",), prepare=("seeds",), needs=("gymnasium==1.4.0", "farama-notifications==0.0.6", "pandas==3.1.1", "python-dateutil==4.0.0", "six==1.17.0"),
          leave_out={"test_vec_envs": "other processes", "test_envs": "no backward pass", "test_logger": "no backward pass", "test_monitor": "no backward pass", "SubprocVecEnv": "other processes"}),
    Suite("opacus", "1.6.0", ("opacus/tests",), needs=("opt-einsum==3.4.0", "hypothesis==6.170.15", "sortedcontainers==2.4.0"),
          leave_out={"multigpu": "wants GPUs", "ddp": "other processes", "distributed": "other processes"}),
    Suite("pytorch-ignite", "0.5.5", ("tests/ignite/engine", "tests/ignite/contrib/engines", "tests/ignite/handlers/test_ema_handler.py", "tests/ignite/handlers/test_lr_finder.py",
                                      "tests/ignite/handlers/test_param_scheduler.py", "tests/ignite/metrics/test_loss.py", "tests/ignite/metrics/test_running_average.py"),
          leave_out={"distrib": "other processes", "xla": "not there", "hvd": "not there", "apex": "not there", "mps": "not there"}),
    Suite("accelerate", "1.15.0", ("tests/test_accelerator.py", "tests/test_optimizer.py", "tests/test_scheduler.py", "tests/test_hooks.py", "tests/test_grad_sync.py", "tests/test_state_checkpointing.py",
                                   "tests/test_kwargs_handlers.py", "tests/test_modeling_utils.py", "tests/test_activation_checkpointing_offload.py"),
          needs=("parameterized==0.9.0",), leave_out={"multi": "other processes"}),
    Suite("peft", "0.21.2", ("tests/test_custom_models.py", "tests/test_mixed.py", "tests/test_target_parameters.py", "tests/test_lorafa.py", "tests/test_riemannian_lora.py", "tests/test_trainable_tokens.py"),
          needs=("parameterized==0.9.0",), what="its tests of custom models, mixtures and optimizers"),
    Suite("torchmetrics", "1.9.0", ("programs/metrics.py",), dtype="float64",
          looked_at={"signal_distortion_ratio-sound": "a filter that is longer than the signal reproduces it, so that the metric is the logarithm of 1 less 1: its values are rounding and nothing else, and plain's are finite too where the "
                                                      "rows are computed one at a time"}, what="metrics that have gradients, as losses"),
    Suite("lightning", "2.6.6", ("programs/lightning_steps.py",), dtype="float64", what="a trainer and a Fabric with each of their ways to step"),
    Suite("sentence-transformers", "6.2.0", ("programs/sentence_losses.py",), dtype="float64", what="every loss over a small encoder"),
    Suite("trl", "1.16.0", ("programs/trl_trainers.py",), needs=("datasets==5.2.0", "pyarrow==26.0.1", "pandas==3.1.1", "dill==0.4.1", "multiprocess==0.70.19", "xxhash==4.1.0", "requests==2.34.2", "urllib3==2.8.0",
                                                           "charset-normalizer==3.5.2", "certifi==2026.10.18", "python-dateutil==4.0.0", "six==1.17.0"), what="its trainers over a small model"),
)}
