#include "oa/ml/training/event_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "oa/core/error.h"

namespace oa::ml::training {
namespace {

constexpr std::string_view kOp = "EventFile";
constexpr size_t kBufferBytes = 64 << 10;

// Reflected polynomial 0x1EDC6F41.
constexpr std::array<u32, 256> make_table() {
  std::array<u32, 256> table = {};
  for (u32 i = 0; i < 256; ++i) {
    u32 c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = c;
  }
  return table;
}
constexpr std::array<u32, 256> kTable = make_table();

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}
static_assert(std::endian::native == std::endian::little, "records are little-endian");

std::span<const u8> bytes_of(std::string_view s) {
  return {reinterpret_cast<const u8*>(s.data()), s.size()};
}

// Fields of protocol buffers: number and kind, then the value.
enum Wire : u32 { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, u64 value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
void put_key(std::string& out, u32 field, Wire wire) { put_varint(out, field << 3 | wire); }
void put_bytes(std::string& out, u32 field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log.
std::string event(f64 wall_time, u64 step) {
  std::string out;
  put_key(out, 1, kFixed64);
  put(out, wall_time);
  put_key(out, 2, kVarint);
  put_varint(out, step);
  return out;
}

}  // namespace

u32 crc32c(std::span<const u8> bytes) {
  u32 c = ~0u;
  for (const u8 b : bytes) c = (c >> 8) ^ kTable[(c ^ b) & 0xFF];
  return ~c;
}

u32 masked_crc32c(std::span<const u8> bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }

std::string event_record(std::string_view data) {
  std::string out;
  put(out, static_cast<u64>(data.size()));
  put(out, masked_crc32c(bytes_of(out)));
  out += data;
  put(out, masked_crc32c(bytes_of(data)));
  return out;
}

EventFile::EventFile(const std::filesystem::path& folder, f64 wall_time) {
  static std::atomic<u32> number = 0;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail(ErrorKind::Io, kOp, "cannot create {}: {}", folder.string(), error.message());
  }
  char host[256] = "localhost";
  if (gethostname(host, sizeof host - 1) != 0 || std::strchr(host, '/') != nullptr) {
    std::strcpy(host, "localhost");
  }
  path_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}",
                               static_cast<i64>(std::floor(wall_time)), host, getpid(), number++);
  errno = 0;
  file_.open(path_, std::ios::binary | std::ios::trunc);
  if (!file_) {
    fail(ErrorKind::Io, kOp, "cannot open {}: {}", path_.string(), std::strerror(errno));
  }
  std::string data = event(wall_time, 0);
  put_bytes(data, 3, "brain.Event:2");
  buffer_ = event_record(data);
  flush();
}

void EventFile::add_scalar(std::string_view tag, u64 step, f32 value, f64 wall_time) {
  std::string entry;  // Summary.Value: 1 tag, 2 simple_value
  put_bytes(entry, 1, tag);
  put_key(entry, 2, kFixed32);
  put(entry, value);
  std::string summary;
  put_bytes(summary, 1, entry);
  std::string data = event(wall_time, step);
  put_bytes(data, 5, summary);
  buffer_ += event_record(data);
  if (buffer_.size() >= kBufferBytes) flush();
}

void EventFile::add_start(u64 step, f64 wall_time) {
  std::string log;  // SessionLog: 1 status, where 1 is START
  put_key(log, 1, kVarint);
  put_varint(log, 1);
  std::string data = event(wall_time, step);
  put_bytes(data, 7, log);
  buffer_ += event_record(data);
}

void EventFile::flush() {
  errno = 0;
  file_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  file_.flush();
  buffer_.clear();
  if (!file_) {
    fail(ErrorKind::Io, kOp, "cannot write {}: {}", path_.string(), std::strerror(errno));
  }
}

}  // namespace oa::ml::training
