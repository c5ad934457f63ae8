//! Who may do what: the roles of a token, and the caller of a request. The gateway identifies the caller; the control API asks whether
//! that caller may do what it asks for.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use crate::checks::check_owner;
use crate::ids::FunctionName;

/// What a token permits. The roles are independent, except that an administrator may do everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Role {
    /// Call functions.
    Invoke,
    /// Deploy, describe, scale and remove functions, and read their logs.
    Deploy,
    /// Everything, for all functions: also tokens.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Invoke, Self::Deploy, Self::Admin];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invoke => "invoke",
            Self::Deploy => "deploy",
            Self::Admin => "admin",
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| format!("'{text}' is not a role: the roles are invoke, deploy, admin"))
    }
}

/// What one token permits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Grant {
    /// The token's name, for people.
    pub name: String,
    /// Its roles.
    pub roles: BTreeSet<Role>,
    /// The functions that it is for; empty: all. It does not limit an administrator.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<FunctionName>))]
    pub functions: BTreeSet<FunctionName>,
    /// The owner of everything that it deploys. It may only change functions of this owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl Grant {
    /// Everything, for all functions.
    #[must_use]
    pub fn admin(name: &str) -> Self {
        Self::of(name, Role::Admin)
    }

    /// One role, for all functions.
    #[must_use]
    pub fn of(name: &str, role: Role) -> Self {
        Self {
            name: name.to_owned(),
            roles: BTreeSet::from([role]),
            functions: BTreeSet::new(),
            owner: None,
        }
    }

    /// Whether it has this role, for any function.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&Role::Admin) || self.roles.contains(&role)
    }

    /// Whether it has this role for this function.
    #[must_use]
    pub fn permits(&self, role: Role, function: &str) -> bool {
        self.is_admin()
            || (self.roles.contains(&role)
                && (self.functions.is_empty()
                    || self
                        .functions
                        .iter()
                        .any(|known| known.as_str() == function)))
    }

    /// Whether it is for some functions or one owner only.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        !self.is_admin() && (!self.functions.is_empty() || self.owner.is_some())
    }

    /// Whether it may do everything.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.roles.contains(&Role::Admin)
    }
}

/// Who makes a request, as an extension of the request.
#[derive(Debug, Clone)]
pub enum Caller {
    /// Somebody with these rights.
    Known(Arc<Grant>),
    /// Somebody whose token is not valid.
    WrongToken,
    /// Somebody without a token.
    Nobody,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_administrator_may_do_everything_and_others_what_their_roles_say() {
        let (one, two) = ("one", "two");
        let mut grant = Grant::of("ci", Role::Deploy);
        assert!(grant.permits(Role::Deploy, one) && !grant.permits(Role::Invoke, one));
        grant.functions.insert(one.parse().unwrap());
        assert!(grant.permits(Role::Deploy, one) && !grant.permits(Role::Deploy, two));
        assert!(grant.has(Role::Deploy) && !grant.has(Role::Admin) && !grant.has(Role::Invoke));
        grant.roles.insert(Role::Admin);
        for role in Role::ALL {
            assert!(grant.permits(role, two) && grant.has(role), "{role:?}");
        }
    }

    #[test]
    fn a_role_is_one_of_three_words() {
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        let problem = "root".parse::<Role>().unwrap_err();
        assert!(problem.contains("invoke, deploy, admin"), "{problem}");
    }
}
