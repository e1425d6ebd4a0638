#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace kda::io {
namespace {

Error system_error(const std::string& path, const char* what) {
  return Error{printable(path) + ": " + what + ": " + std::strerror(errno)};
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// Opens a regular file and says how long it is.
Result<size_t> open_regular(const std::string& path, Descriptor& descriptor) {
  // O_NONBLOCK: a FIFO given by mistake must not hang before fstat refuses it.
  descriptor.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor.fd < 0) return system_error(path, "cannot open");
  struct stat info {};
  if (::fstat(descriptor.fd, &info) != 0) return system_error(path, "cannot read its size");
  if (!S_ISREG(info.st_mode)) {
    return Error{printable(path) + ": expected a regular file, found " +
                 (S_ISDIR(info.st_mode) ? "a directory" : "something else")};
  }
  return static_cast<size_t>(info.st_size);
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (const char c : text) {
    if (out.size() >= limit) return out + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      out += escaped;
    }
  }
  return out;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  Descriptor descriptor;
  const Result<size_t> size = open_regular(path, descriptor);
  if (!size) return Error{size.error()};
  MappedFile file;
  if (*size == 0) return file;
  void* data = ::mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, descriptor.fd, 0);
  if (data == MAP_FAILED) return system_error(path, "cannot map");
  file.data_ = data;
  file.size_ = *size;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<std::string> read_file(const std::string& path, size_t limit) {
  Descriptor descriptor;
  const Result<size_t> size = open_regular(path, descriptor);
  if (!size) return Error{size.error()};
  std::string contents;
  char buffer[1 << 16];
  // Read to the end rather than to the size: files of /proc report 0.
  while (true) {
    const ssize_t got = ::read(descriptor.fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path, "cannot read");
    if (got == 0) return contents;
    contents.append(buffer, static_cast<size_t>(got));
    if (contents.size() > limit) {
      return Error{printable(path) + ": expected at most " + std::to_string(limit) + " bytes, found more"};
    }
  }
}

Outcome write_file_atomically(const std::string& path, const std::function<bool(const PieceSink&)>& write_pieces) {
  std::string temporary = path + ".XXXXXX";
  Descriptor descriptor;
  descriptor.fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor.fd < 0) return system_error(path, "cannot create a temporary file beside it");
  const mode_t mask = ::umask(0);
  ::umask(mask);
  const bool written =
      ::fchmod(descriptor.fd, 0666 & ~mask) == 0 &&
      write_pieces([&](std::span<const std::byte> piece) { return write_all(descriptor.fd, piece); }) &&
      ::fsync(descriptor.fd) == 0 && ::rename(temporary.c_str(), path.c_str()) == 0;
  if (written) return Done{};
  const Error error = system_error(path, "cannot write");
  ::unlink(temporary.c_str());
  return error;
}

Outcome write_file_atomically(const std::string& path, std::string_view contents) {
  return write_file_atomically(path, [&](const PieceSink& sink) {
    return sink(std::as_bytes(std::span<const char>(contents.data(), contents.size())));
  });
}

}  // namespace kda::io
