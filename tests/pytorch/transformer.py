# SPDX-License-Identifier: Apache-2.0
"""transformers.Trainer on a made-up task, with a tiny BERT that is not downloaded."""
import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Made(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.arange(8) + index % 16
        return {"input_ids": tokens, "attention_mask": torch.ones(8, dtype=torch.long), "labels": index % 2}


config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
arguments = TrainingArguments(output_dir=sys.argv[1], max_steps=4, per_device_train_batch_size=4, use_cpu=True,
                              report_to=[], save_strategy="no", disable_tqdm=True)
trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Made())
trainer.train()
if trainer.is_world_process_zero():
    print(f"DONE world={arguments.world_size}")
