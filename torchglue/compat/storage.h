// What differs between the supported torch versions (2.11 and 2.13), and nothing else.
#pragma once

#include <c10/core/StorageImpl.h>

namespace koila {

// torch 2.11 can make a storage refuse raw access, and has no way back. An explicit instantiation may name private members.
template <auto Flag, auto Refresh>
struct StoragePrivate {
  friend void allow_access(c10::StorageImpl& storage) {
    storage.*Flag = false;
    (storage.*Refresh)();
  }
};
void allow_access(c10::StorageImpl& storage);
template struct StoragePrivate<&c10::StorageImpl::throw_on_immutable_data_ptr_, &c10::StorageImpl::refresh_has_data_ptr_check>;

template <class Storage>
void clear_access_error(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  } else {
    allow_access(storage);
  }
}

}  // namespace koila
