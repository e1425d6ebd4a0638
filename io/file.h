// Files as the tools use them: read-only mappings, whole small files, and writing that never leaves half a file.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "io/result.h"

namespace kda::io {

// Text from a file made fit for one line of a terminal: control bytes escaped, long text cut.
std::string printable(std::string_view text, size_t limit = 160);

// A regular file mapped read-only for as long as this object lives. Shortening the file meanwhile is undefined (the
// operating system raises SIGBUS), as with every mapping.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// The whole of a regular file; refused above `limit` bytes.
Result<std::string> read_file(const std::string& path, size_t limit = size_t{64} << 20);

// Writes a temporary file beside `path` piece by piece, then renames it: a reader sees the old file, the whole new one
// or none. `write_pieces` calls its argument for each piece in order.
using PieceSink = std::function<bool(std::span<const std::byte>)>;
Outcome write_file_atomically(const std::string& path, const std::function<bool(const PieceSink&)>& write_pieces);
Outcome write_file_atomically(const std::string& path, std::string_view contents);

}  // namespace kda::io
