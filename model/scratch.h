// Memory that is reused from call to call.
#pragma once

#include <cstdint>
#include <vector>

namespace kda::model {

// The buffer's memory, grown to `size` elements if it is smaller. Never shrinks: decoding reuses what the prompt
// needed.
template <class T>
T* at_least(std::vector<T>* buffer, int64_t size) {
  if (static_cast<int64_t>(buffer->size()) < size) buffer->resize(static_cast<size_t>(size));
  return buffer->data();
}

}  // namespace kda::model
