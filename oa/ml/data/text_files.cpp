// The walk through folders, and what counts as text.
#include "oa/ml/data/text_files.h"

#include <algorithm>
#include <cstring>

#include "oa/core/error.h"

namespace oa::ml::data {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view op = "TextFiles";

// Why these bytes are no text to learn from, or an empty string.
std::string no_text(std::span<const u8> bytes, bool binary) {
  if (bytes.empty()) return "is empty";
  const auto begin = bytes.first(std::min<size_t>(bytes.size(), size_t{64} << 10));
  const void* nul = std::memchr(begin.data(), 0, begin.size());
  if (binary || !nul) return {};
  return fmt::format("is binary: byte {} is 0", static_cast<const u8*>(nul) - begin.data());
}

[[noreturn]] void cannot(std::string_view what, const fs::path& path,
                         const std::error_code& error) {
  fail(ErrorKind::Io, op, "cannot {} '{}': {}", what, path.string(), error.message());
}

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

}  // namespace

TextFiles TextFiles::open(const fs::path& path, bool binary) {
  TextFiles found;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error) cannot("examine", path, error);
  if (!fs::is_directory(status)) {
    const MappedFile file(path);
    if (const std::string reason = no_text(file.bytes(), binary); !reason.empty())
      invalid(op, "'{}' {}, expected a text", path.string(), reason);
    found.files_.push_back({path, file.bytes().size()});
    return found;
  }

  std::vector<fs::path> paths;
  fs::recursive_directory_iterator at(path, error);
  if (error) cannot("read the folder", path, error);
  for (const fs::recursive_directory_iterator end; at != end;) {
    const fs::path& entry = at->path();
    const fs::file_status here = at->symlink_status(error);
    if (error) cannot("examine", entry, error);
    if (hidden(entry)) {
      at.disable_recursion_pending();
    } else if (fs::is_symlink(here)) {
      const fs::file_status target = at->status(error);
      // A link into nowhere is an error of the folder, as an unreadable file is.
      if (error || !fs::exists(target))
        cannot("follow", entry,
               error ? error : std::make_error_code(std::errc::no_such_file_or_directory));
      if (fs::is_regular_file(target)) {
        paths.push_back(entry);
      } else {
        found.skipped_.push_back({entry, "is a link to no file"});
      }
    } else if (fs::is_regular_file(here)) {
      paths.push_back(entry);
    } else if (!fs::is_directory(here)) {
      found.skipped_.push_back({entry, "is no file"});
    }
    // A folder that cannot be read ends the walk, so its path has to be known before.
    const fs::path current = entry;
    at.increment(error);
    if (error) cannot("read the folder", current, error);
  }
  std::sort(paths.begin(), paths.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  for (const fs::path& file_path : paths) {
    const MappedFile file(file_path);
    if (std::string reason = no_text(file.bytes(), binary); !reason.empty()) {
      found.skipped_.push_back({file_path, std::move(reason)});
    } else {
      found.files_.push_back({file_path, file.bytes().size()});
    }
  }
  if (found.files_.empty()) {
    std::string first;
    if (!found.skipped_.empty())
      first = fmt::format(" (the first of them: '{}' {})", found.skipped_[0].path.string(),
                          found.skipped_[0].reason);
    invalid(op, "no text in the folder '{}', got {} files that are none{}, expected at least one",
            path.string(), found.skipped_.size(), first);
  }
  return found;
}

u64 TextFiles::bytes() const {
  u64 sum = 0;
  for (const File& file : files_) sum += file.size;
  return sum;
}

MappedFile TextFiles::content(size_t file) const {
  const File& known = files_.at(file);
  MappedFile mapped(known.path);
  if (mapped.bytes().size() != known.size)
    fail(ErrorKind::Io, op, "'{}' changed while it was in use, got {} bytes, expected {}",
         known.path.string(), mapped.bytes().size(), known.size);
  return mapped;
}

std::vector<u8> TextFiles::head(u64 most) const {
  std::vector<u8> text;
  text.reserve(std::min(most, bytes()));
  for (size_t i = 0; i < files_.size() && text.size() < most; ++i) {
    const MappedFile file = content(i);
    const auto part = file.bytes().first(std::min<u64>(most - text.size(), file.bytes().size()));
    text.insert(text.end(), part.begin(), part.end());
  }
  return text;
}

Hash128 TextFiles::hash() const {
  Hasher hasher;
  for (size_t i = 0; i < files_.size(); ++i) {
    const MappedFile file = content(i);
    hasher.add(u64{file.bytes().size()});
    hasher.bytes(file.bytes().data(), file.bytes().size());
  }
  return hasher.finish();
}

}  // namespace oa::ml::data
