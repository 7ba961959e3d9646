// Where this library lies.
#ifndef KOILA_SHIM_OWN_FOLDER_H_
#define KOILA_SHIM_OWN_FOLDER_H_

#include <string>

namespace koila::shim {

// To be called as the library is loaded: LD_PRELOAD=build/lib/libkoila.so names it from the working folder, which the program may leave, and another folder
// may have a build/lib as well. Looks at no file where the loader was given a whole path.
void remember_own_folder();

// From the root; "" when it cannot be told.
std::string own_folder();

}  // namespace koila::shim

#endif  // KOILA_SHIM_OWN_FOLDER_H_
