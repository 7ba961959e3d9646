// What a command line must not tell whoever is shown a report.
#ifndef KOILA_RUNTIME_SECRETS_H_
#define KOILA_RUNTIME_SECRETS_H_

#include <string>
#include <string_view>
#include <vector>

namespace koila {

// The words with blanks between them, and *** in place of what looks like a secret: the value of an option, a variable or a parameter whose name says so
// (token, secret, password, key, credential, authorization, ...), what follows "Bearer", a user's name and password in a URL, and what begins as well-known
// kinds of tokens do. A guess, which goes too far rather than not far enough.
std::string masked_command(const std::vector<std::string>& words);

// Whether a name such as "--hf-token" or "AWS_SECRET_ACCESS_KEY" is that of a secret.
bool names_a_secret(std::string_view name);

}  // namespace koila

#endif  // KOILA_RUNTIME_SECRETS_H_
