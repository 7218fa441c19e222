// The command lines of `oa train lm` and `oa generate`: their options, and which values make sense.
// Neither opens a file nor a device.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "apps/oa/lm/config.h"
#include "apps/oa/lm/generate.h"

namespace oa::command {

struct TrainOptions {
  LmModelConfig model;
  LmTrainConfig train;
  std::string out = "run";
  std::string device;
  std::string profile;  // file for a trace; empty: none
  bool resume = false;
  i64 sample = 200;    // tokens written at the end
  i64 stop_after = 0;  // steps of this session; 0: any number
};

struct GenerateCommand {
  std::string model, prompt, device;
  GenerateOptions options;
};

// Declares the options; parsing fills `o`, which has to outlive the command.
void declare(CLI::App& command, LmModelConfig& m);  // what a language model is
void declare(CLI::App& command, TrainOptions& o);
void declare(CLI::App& command, GenerateCommand& c);

// What goes together; a CLI::ParseError, for the end of parsing.
void check_usage(const CLI::App& command, const TrainOptions& o);
// InvalidArgument with the option's name for values that make no sense.
void check(const TrainOptions& o);
void check(const GenerateOptions& o);

}  // namespace oa::command
