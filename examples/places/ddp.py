"""Two ranks that train together (DistributedDataParallel, gloo), as torchrun starts them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x, y = torch.randn(4096, 64), torch.randint(10, (4096,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {step + 1}  loss {loss.item():.4f}", flush=True)
dist.monitored_barrier()  # PyTorch aborts where a rank ends while its gloo thread still lets go of the last reduction, or of a barrier()
dist.destroy_process_group()
