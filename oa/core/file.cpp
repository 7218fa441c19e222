// Files through the POSIX calls, because std::fstream reports no reason and cannot sync.
#include "oa/core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "oa/core/error.h"
#include "oa/core/mapped_file.h"

namespace oa {

namespace fs = std::filesystem;

namespace {

std::string reason(int code) { return std::generic_category().message(code); }

[[noreturn]] void io_error(std::string_view op, std::string_view what, const fs::path& path,
                           int code) {
  fail(ErrorKind::Io, op, "cannot {} '{}': {}", what, path.string(), reason(code));
}

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  int fd;
  do fd = ::open(path, flags | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR);
  return fd;
}

void sync_directory(const fs::path& directory) {
  Descriptor fd(open_retrying(directory.c_str(), O_RDONLY | O_DIRECTORY));
  if (!fd.valid()) io_error("write_file", "open the directory", directory, errno);
  // EINVAL: the file system has no notion of syncing a directory.
  if (::fsync(fd.get()) != 0 && errno != EINVAL)
    io_error("write_file", "sync the directory", directory, errno);
}

// Creates missing directories; with Durability::Disk they outlive a power failure, too.
void create_parents(const fs::path& directory, Durability durability) {
  std::vector<fs::path> created;
  std::error_code error;
  for (fs::path at = directory; !at.empty() && !fs::exists(at, error); at = at.parent_path())
    created.push_back(at);
  fs::create_directories(directory, error);
  if (error) io_error("write_file", "create the directory", directory, error.value());
  if (durability != Durability::Disk) return;
  for (const fs::path& at : created)
    sync_directory(at.has_parent_path() ? at.parent_path() : fs::path("."));
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

constexpr std::string_view kTemporary = ".tmp.";

// Locks a new temporary for as long as a descriptor of it is open. False when somebody else has
// taken it for an abandoned one; where files cannot be locked, nobody does.
bool claim(int fd) {
  struct stat info;
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  return ::fstat(fd, &info) != 0 || info.st_nlink > 0;
}

// Whether write_file could have named a temporary so: "<target>.tmp.<pid>.<sequence>".
bool is_temporary(std::string_view name, std::string_view prefix) {
  const size_t at = name.rfind(kTemporary);
  if (at == std::string_view::npos || at == 0 || !name.substr(0, at).starts_with(prefix)) {
    return false;
  }
  const std::string_view end = name.substr(at + kTemporary.size());
  const size_t dot = end.find('.');
  const auto number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return dot != std::string_view::npos && number(end.substr(0, dot)) && number(end.substr(dot + 1));
}

}  // namespace

std::vector<u8> read_file(const fs::path& path) {
  constexpr std::string_view op = "read_file";
  Descriptor fd(open_retrying(path.c_str(), O_RDONLY));
  if (!fd.valid()) io_error(op, "open", path, errno);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) io_error(op, "examine", path, errno);
  if (S_ISDIR(info.st_mode)) io_error(op, "read", path, EISDIR);

  // The size is only a first guess: the file may grow meanwhile, and pipes have none.
  std::vector<u8> bytes(static_cast<size_t>(info.st_size) + 1);
  size_t filled = 0;
  for (;;) {
    const ssize_t n = ::read(fd.get(), bytes.data() + filled, bytes.size() - filled);
    if (n < 0) {
      if (errno == EINTR) continue;
      io_error(op, "read", path, errno);
    }
    if (n == 0) break;
    filled += static_cast<size_t>(n);
    if (filled == bytes.size()) bytes.resize(2 * filled + 4096);
  }
  bytes.resize(filled);
  return bytes;
}

AtomicFile::AtomicFile(fs::path target, Durability durability)
    : target_(std::move(target)), durability_(durability) {
  static std::atomic<u32> sequence{0};
  create_parents(parent_of(target_), durability_);
  do {
    if (fd_ >= 0) ::close(fd_);  // lost to remove_abandoned before it was locked
    do {
      temporary_ = target_;
      temporary_ += fmt::format("{}{}.{}", kTemporary, ::getpid(), sequence.fetch_add(1));
      fd_ = open_retrying(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
    } while (fd_ < 0 && errno == EEXIST);  // left by a dead process that had our id
    if (fd_ < 0) io_error("write_file", "create", temporary_, errno);
  } while (!claim(fd_));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!renamed_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const u8> bytes) {
  OA_CHECK(fd_ >= 0);
  constexpr size_t kMaxWrite = size_t{1} << 30;  // one call takes less than 2 GiB
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (n < 0) {
      if (errno == EINTR) continue;
      io_error("write_file", "write", temporary_, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
    position_ += static_cast<u64>(n);
  }
}

void AtomicFile::seek(u64 position) {
  OA_CHECK(fd_ >= 0);
  if (::lseek(fd_, static_cast<off_t>(position), SEEK_SET) < 0)
    io_error("write_file", "seek in", temporary_, errno);
  position_ = position;
}

void AtomicFile::commit() {
  OA_CHECK(fd_ >= 0);
  constexpr std::string_view op = "write_file";
  if (durability_ == Durability::Disk && ::fsync(fd_) != 0) io_error(op, "sync", temporary_, errno);
  const Descriptor lock(::fcntl(fd_, F_DUPFD_CLOEXEC, 0));  // keeps it until the file has its name
  // Some file systems report a failed write only here.
  if (::close(std::exchange(fd_, -1)) != 0) io_error(op, "close", temporary_, errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0)
    io_error(op, "rename the new file to", target_, errno);
  renamed_ = true;
  if (durability_ == Durability::Disk) sync_directory(parent_of(target_));
}

void write_file(const fs::path& path, std::span<const u8> bytes, Durability durability) {
  AtomicFile file(path, durability);
  file.write(bytes);
  file.commit();
}

u64 remove_abandoned(const fs::path& folder, std::string_view prefix) {
  u64 removed = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const fs::path& path = it->path();
    if (!is_temporary(path.filename().string(), prefix)) continue;
    if (!fs::is_regular_file(it->symlink_status(gone))) continue;
    const Descriptor fd(open_retrying(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
    if (!fd.valid() || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (::unlink(path.c_str()) == 0) ++removed;
  }
  return removed;
}

SharedFile::SharedFile(const fs::path& path) {
  constexpr u64 kSmall = u64{1} << 16;  // below, a copy is cheaper and cannot be cut short
  std::error_code error;
  const auto hold = [&](auto content) {
    const auto held = std::make_shared<const decltype(content)>(std::move(content));
    if constexpr (std::is_same_v<decltype(content), MappedFile>) {
      bytes_ = held->bytes();
    } else {
      bytes_ = *held;
    }
    owner_ = held;
  };
  if (fs::is_regular_file(path, error) && fs::file_size(path, error) >= kSmall && !error) {
    hold(MappedFile(path));
  } else {
    hold(read_file(path));
  }
}

std::string prepare_directory(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const bool created = fs::create_directories(path, error);
    if (error) return fmt::format("cannot create '{}': {}", path.string(), error.message());
    if (created) ::chmod(path.c_str(), 0700);
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0)
    return fmt::format("cannot write into '{}': {}", path.string(), reason(errno));
  return {};
}

}  // namespace oa
