// States of trainings and callbacks as JSON text, for the sources of this folder only: the
// installed headers need no JSON library.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "oa/core/error.h"

namespace oa::ml::training {

// JSON has no NaN and no infinities; they become text. Finite numbers keep all their bits.
inline nlohmann::json to_state(f64 x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return x;
}

// Reads what a state text says; every failure is DataLoss with the owner's name.
class StateReader {
 public:
  StateReader(std::string_view owner, std::string_view text)
      : owner_(owner), json_(nlohmann::json::parse(text, nullptr, false)) {
    if (!json_.is_object()) fail(ErrorKind::DataLoss, owner_, "state, expected a JSON object");
  }
  StateReader(std::string_view owner, nlohmann::json json)
      : owner_(owner), json_(std::move(json)) {}

  bool has(const char* key) const { return json_.contains(key); }

  u64 natural(const char* key) const {
    const nlohmann::json& v = at(key);
    if (!v.is_number_unsigned()) wrong(key, "a number of 0 or more");
    return v.get<u64>();
  }
  f64 number(const char* key) const {
    const nlohmann::json& v = at(key);
    f64 x = 0;
    if (!as_number(v, x)) wrong(key, "a number");
    return x;
  }
  bool boolean(const char* key) const {
    const nlohmann::json& v = at(key);
    if (!v.is_boolean()) wrong(key, "true or false");
    return v.get<bool>();
  }
  std::string text(const char* key) const {
    const nlohmann::json& v = at(key);
    if (!v.is_string()) wrong(key, "a text");
    return v.get<std::string>();
  }
  std::vector<f64> numbers(const char* key) const {
    const nlohmann::json& v = at(key);
    if (!v.is_array()) wrong(key, "a list of numbers");
    std::vector<f64> out(v.size());
    for (size_t i = 0; i < v.size(); ++i) {
      if (!as_number(v[i], out[i])) wrong(key, "a list of numbers");
    }
    return out;
  }
  const nlohmann::json& at(const char* key) const {
    if (!json_.contains(key)) fail(ErrorKind::DataLoss, owner_, "state has no \"{}\"", key);
    return json_[key];
  }
  [[noreturn]] void wrong(const char* key, std::string_view expected) const {
    fail(ErrorKind::DataLoss, owner_, "state \"{}\", got {}, expected {}", key,
         json_[key].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), expected);
  }

 private:
  static bool as_number(const nlohmann::json& v, f64& out) {
    if (v.is_number()) {
      out = v.get<f64>();
    } else if (v == "nan") {
      out = std::nan("");
    } else if (v == "inf" || v == "-inf") {
      out = v == "inf" ? HUGE_VAL : -HUGE_VAL;
    } else {
      return false;
    }
    return true;
  }

  std::string_view owner_;
  nlohmann::json json_;
};

}  // namespace oa::ml::training
