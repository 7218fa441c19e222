// The `.oam` checkpoint file: configuration, weights, state, optimizer and progress of one model.
//
// The writer writes version 3, the reader takes versions 1 to 3. Every integer is little-endian;
// all payloads carry FNV-1a checksums, which find accidents and authenticate nothing.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oa/core/file.h"
#include "oa/ml/checkpoint/tensor_view.h"

namespace oa::ml {

struct OamConfig {
  std::string architecture = "OaModule";  // at most 31 bytes of UTF-8
  u32 version = 1;
  u32 flags = 0;
  u32 d_model = 0, n_layers = 0, d_vocab = 256;
  FileDType weight_dtype = FileDType::F32;
  FileDType state_dtype = FileDType::F32;
  FileDType compute_dtype = FileDType::F32;
  std::span<const u8> extra;  // meaning is the architecture's own
};

// Settings and moments. The arrays hold F32 values of all parameters, one parameter after the other
// in the order of the weights, and may be empty before the first step.
struct OamOptimizer {
  std::string kind = "AdamW";  // SGD, Adam, AdamW, Muon or MuonAdamW
  f32 learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  i64 step = 0;  // completed updates
  // Adam's m; Muon's momentum, and SGD's: the original has none there, but a run that resumes
  // without it is another run.
  std::span<const u8> first;
  std::span<const u8> second;  // Adam's v, as long as `first`; none for SGD and Muon
  std::span<const u8> muon;    // of MuonAdamW, whose other arrays are its Adam's
};

struct OamProgress {
  u8 phase = 0;
  i64 step = 0;
  u64 bytes_seen = 0;
  u64 environment_steps = 0;
  f32 learning_rate = 3e-4f;
  f32 best_metric = 0;
  bool lower_is_better = true;
  std::string metric_name = "loss";  // at most 31 bytes of UTF-8
};

// The content of a file. Bytes are views; what they point into is the caller's or in `owned`, which
// copies share.
struct Oam {
  u32 version = 3;  // of the file that this was read from; files are always written as version 3
  OamConfig config;
  std::vector<TensorView> weights;
  std::vector<TensorView> state;
  std::optional<OamOptimizer> optimizer;
  OamProgress progress;
  std::vector<std::shared_ptr<const void>> owned;

  // Moves `bytes` into `owned` and returns a view of them.
  std::span<const u8> own(std::vector<u8> bytes);
  void add_weight(std::string name, FileDType dtype, Shape shape, std::vector<u8> bytes);
  void add_state(std::string name, FileDType dtype, Shape shape, std::vector<u8> bytes);
  // A module's u32 state: dtype U32, rank 0.
  void add_state(std::string name, u32 value);
};

// The content of the file image `bytes`, as views into it. Everything is verified before anything
// is returned, and no more memory is taken than the image itself has. Throws CheckpointCorrupt with
// a message that starts with "corrupt .oam: ".
Oam parse_oam(std::span<const u8> bytes);

// The same for a file, which stays mapped for as long as a copy of the result lives. Throws Io,
// too.
Oam read_oam(const std::filesystem::path& path);

// Throws InvalidArgument when the content cannot be written: names (unique, 1 to 127 bytes of
// UTF-8), rank above 8, a dtype that .oam has not, bytes that do not fit dtype, shape and encoding,
// quantised state, lengths of moments.
std::vector<u8> encode_oam(const Oam& content);

// Replaces `path` in one step (AtomicFile). The content is checked first; throws as encode_oam, and
// Io.
void write_oam(const std::filesystem::path& path, const Oam& content,
               Durability durability = Durability::Disk);

// A copy for inference only: F32 weights of rank 2 and more become Q4 or Q8, the optimizer is left
// out.
Oam quantized(const Oam& content, Encoding encoding);

}  // namespace oa::ml
