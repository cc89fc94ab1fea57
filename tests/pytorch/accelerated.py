# SPDX-License-Identifier: Apache-2.0
"""Hugging Face accelerate, which finds its ranks in torchrun's environment."""
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 10), torch.randint(0, 2, (64,))),
                                   batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for inputs, targets in data:
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
assert len(data) == 8 // accelerator.num_processes
if accelerator.is_main_process:
    print(f"DONE world={accelerator.num_processes}")
accelerator.end_training()
