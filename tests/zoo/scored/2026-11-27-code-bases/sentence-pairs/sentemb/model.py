from torch import nn
import torch.nn.functional as F
from transformers import BertConfig, BertModel


class SentenceEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.bert = BertModel(BertConfig(
            vocab_size=cfg.vocab, hidden_size=cfg.hidden, num_hidden_layers=cfg.layers,
            num_attention_heads=cfg.heads, intermediate_size=4 * cfg.hidden, max_position_embeddings=cfg.length,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), add_pooling_layer=False)

    def forward(self, ids):
        h = self.bert(input_ids=ids).last_hidden_state
        return F.normalize(h.mean(1), dim=1)
