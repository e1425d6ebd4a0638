// config.json of an EAGLE-3 drafter, checked field by field. What this drafter cannot do is refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/result.h"

namespace kda::speculation {

struct Eagle3Config {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t vocab_size = 0;        // of the target
  int64_t draft_vocab_size = 0;  // of the drafter's lm_head
  int64_t target_hidden_size = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  // 0-based target layers whose incoming residual stream is a feature; empty = not given.
  std::vector<int> aux_layers;

  // The feature layers for a target of `target_layers` layers: those given, else one low, middle and high layer.
  io::Result<std::vector<int>> feature_layers(int target_layers) const;

  // `path` is used in messages only.
  static io::Result<Eagle3Config> parse(std::string_view json, const std::string& path);
  static io::Result<Eagle3Config> read(const std::string& path);
};

}  // namespace kda::speculation
