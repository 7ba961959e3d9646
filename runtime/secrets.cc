#include "runtime/secrets.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>

namespace koila {
namespace {

constexpr std::string_view kMask = "***";

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }
bool is_of_a_name(char c) { return is_alnum(c) || c == '_' || c == '-' || c == '.'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// "hf-token", "hfToken" and "HF_TOKEN" are "hf" and "token".
std::vector<std::string> parts_of(std::string_view name) {
  std::vector<std::string> parts;
  bool in_part = false, was_small = false;
  for (const char c : name) {
    const bool is_large = std::isupper(static_cast<unsigned char>(c)) != 0;
    if (!is_alnum(c)) {
      in_part = false;
      continue;
    }
    if (!in_part || (is_large && was_small)) parts.emplace_back();
    parts.back() += lower(c);
    in_part = true;
    was_small = !is_large;
  }
  return parts;
}

bool part_is_secret(const std::string& part) {
  constexpr std::array kWhole = {"key", "pwd", "pass", "pw", "auth", "authorization", "bearer", "pat", "sig", "signature", "cookie", "creds", "dsn", "jwt", "otp", "pin"};
  constexpr std::array kWithin = {"password", "passwd", "passphrase", "secret", "credential", "apikey", "accesskey", "privatekey"};
  if (std::find(kWhole.begin(), kWhole.end(), part) != kWhole.end() || part.ends_with("token")) return true;
  return std::any_of(kWithin.begin(), kWithin.end(), [&](const char* word) { return part.find(word) != std::string::npos; });
}

// How far a value goes that begins at `at`: to its closing quote, or to what ends a word, a parameter of a URL or an argument of a call.
std::size_t end_of_value(std::string_view text, std::size_t at, bool whole_word) {
  if (at < text.size() && (text[at] == '"' || text[at] == '\'')) {
    const std::size_t close = text.find(text[at], at + 1);
    return close == std::string_view::npos ? text.size() : close + 1;
  }
  if (whole_word) return text.size();
  while (at < text.size() && !is_blank(text[at]) && std::string_view("&;,\"')]}").find(text[at]) == std::string_view::npos) ++at;
  return at;
}

// "name=value", "name: value", {"name": "value"}, wherever it stands.
void mask_named(std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    if (!is_of_a_name(text[at])) {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    while (at < text.size() && is_of_a_name(text[at])) ++at;
    const bool is_whole_word = text.find_first_not_of('-') == begin || begin == 0;
    const std::string_view name = std::string_view(text).substr(begin, at - begin);
    std::size_t value = at;
    while (value < text.size() && (text[value] == '"' || text[value] == '\'' || text[value] == ']' || is_blank(text[value]))) ++value;
    if (value >= text.size() || (text[value] != '=' && text[value] != ':') || !names_a_secret(name)) continue;
    const bool is_word = is_whole_word && text[value] == '=' && value == at;  // of a shell: the rest of it is the value
    while (value < text.size() && (text[value] == '=' || text[value] == ':' || is_blank(text[value]))) ++value;
    std::size_t end = end_of_value(text, value, is_word);
    // "Authorization: Bearer ...": both words.
    if (std::string first = text.substr(value, end - value); end < text.size() && is_blank(text[end])) {
      std::transform(first.begin(), first.end(), first.begin(), lower);
      if (first == "bearer" || first == "basic" || first == "token") end = end_of_value(text, end + 1, false);
    }
    if (end == value) continue;
    text.replace(value, end - value, kMask);
    at = value + kMask.size();
  }
}

// "Bearer ..." by itself.
void mask_bearer(std::string& text) {
  std::string small = text;
  std::transform(small.begin(), small.end(), small.begin(), lower);
  for (std::size_t at = small.find("bearer "); at != std::string::npos; at = small.find("bearer ", at + 1)) {
    const std::size_t value = at + 7, end = end_of_value(text, value, false);
    text.replace(value, end - value, kMask);
    small.replace(value, end - value, kMask);
  }
}

// "scheme://user:password@host".
void mask_userinfo(std::string& text) {
  for (std::size_t at = text.find("://"); at != std::string::npos; at = text.find("://", at + 3)) {
    const std::size_t begin = at + 3;
    std::size_t end = begin;
    while (end < text.size() && text[end] != '/' && text[end] != '?' && text[end] != '#' && !is_blank(text[end]) && text[end] != '"' && text[end] != '\'') ++end;
    const std::size_t sign = text.substr(begin, end - begin).rfind('@');
    if (sign != std::string::npos && sign > 0) text.replace(begin, sign, kMask);
  }
}

void mask_known(std::string& text) {
  constexpr std::array kBegins = {"hf_", "sk-", "sk_live_", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA", "ASIA", "AIza", "ya29.", "eyJ", "dapi", "pypi-"};
  constexpr std::size_t kLeast = 16;  // characters behind it
  for (const std::string_view begin : kBegins) {
    for (std::size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
      if (at > 0 && (is_alnum(text[at - 1]) || text[at - 1] == '_')) continue;
      std::size_t end = at + begin.size();
      while (end < text.size() && is_of_a_name(text[end])) ++end;
      if (end - at - begin.size() >= kLeast) text.replace(at, end - at, kMask);
    }
  }
}

}  // namespace

bool names_a_secret(std::string_view name) {
  const std::vector<std::string> parts = parts_of(name);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    // "pad_token_id", "token_type": of a tokenizer.
    const bool is_of_text = parts[i] == "token" && i + 1 < parts.size() && (parts[i + 1] == "id" || parts[i + 1] == "ids" || parts[i + 1] == "type" || parts[i + 1].starts_with("len"));
    if (part_is_secret(parts[i]) && !is_of_text) return true;
  }
  return false;
}

std::string masked_command(const std::vector<std::string>& words) {
  std::string command;
  bool is_value = false;  // of the option before
  for (std::string word : words) {
    const bool is_option = word.size() > 1 && word[0] == '-' && word.find('=') == std::string::npos && word.find_first_of(" \n") == std::string::npos;
    if (is_value && !is_option) {
      word = kMask;
      is_value = false;
    } else {
      is_value = is_option && names_a_secret(word);
      mask_userinfo(word);
      mask_named(word);
      mask_bearer(word);
      mask_known(word);
    }
    command += (command.empty() ? "" : " ") + word;
  }
  return command;
}

}  // namespace koila
