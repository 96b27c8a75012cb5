//! Features that no release has: switches of tests, which stand in the product's sources.
//!
//! A feature of this list may not be in a package's default features, and no dependency but one
//! of tests (`[dev-dependencies]`, which cargo leaves out of a build that is no test) may turn it
//! on, unless the feature that does is such a one itself. So nobody gets it who does not name it.
//!
//! What it does not know: which of a workspace's builds was run, and with which words.

use serde_json::Value;

const FOR_TESTS: &[&str] = &["fault-injection", "count-contention"];

/// Runs the check on the workspace that cargo finds here.
pub fn run() -> Result<bool, String> {
    let metadata = crate::layers::metadata()?;
    let complaints = check(&metadata)?;
    for complaint in &complaints {
        println!("released: {complaint}");
    }
    if complaints.is_empty() {
        println!("released: {} is in no release", FOR_TESTS.join(", "));
    }
    Ok(complaints.is_empty())
}

fn check(metadata: &Value) -> Result<Vec<String>, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let mut complaints = Vec::new();
    let mut declared = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        for (feature, turns_on) in package["features"].as_object().into_iter().flatten() {
            if is_for_tests(feature) {
                declared.push(feature.clone());
                continue;
            }
            if strings(turns_on).any(is_for_tests) {
                complaints.push(format!("{name}: feature {feature} turns a switch of tests on"));
            }
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let of_tests = dependency["kind"] == "dev";
            if !of_tests && strings(&dependency["features"]).any(is_for_tests) {
                let to = dependency["name"].as_str().unwrap_or_default();
                complaints.push(format!("{name} -> {to} turns a switch of tests on"));
            }
        }
    }
    for feature in FOR_TESTS {
        if !declared.iter().any(|known| known == feature) {
            complaints.push(format!("no package has the feature {feature} that is looked for"));
        }
    }
    Ok(complaints)
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// `feature`, `package/feature` or `package?/feature`.
fn is_for_tests(feature: &str) -> bool {
    let last = feature.rsplit('/').next().unwrap_or(feature);
    FOR_TESTS.contains(&last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn complaints(features: Value, dependencies: Value) -> Vec<String> {
        let switches = json!({"fault-injection": ["txn/fault-injection"], "count-contention": []});
        let engine = json!({"name": "engine", "features": switches});
        let user = json!({"name": "user", "features": features, "dependencies": dependencies});
        check(&json!({"packages": [engine, user]})).unwrap()
    }

    #[test]
    fn tests_may_turn_it_on() {
        let own = json!([{"name": "engine", "kind": "dev", "features": ["fault-injection"]}]);
        assert_eq!(complaints(json!({}), own), Vec::<String>::new());
    }

    #[test]
    fn a_release_may_not() {
        let normal = json!([{"name": "engine", "kind": null, "features": ["fault-injection"]}]);
        assert_eq!(complaints(json!({}), normal), ["user -> engine turns a switch of tests on"]);
        let build = json!([{"name": "engine", "kind": "build", "features": ["fault-injection"]}]);
        assert_eq!(complaints(json!({}), build), ["user -> engine turns a switch of tests on"]);
        for word in ["fault-injection", "engine/fault-injection", "engine?/fault-injection"] {
            let default = json!({"default": [word]});
            assert_eq!(
                complaints(default, json!([])),
                ["user: feature default turns a switch of tests on"]
            );
        }
    }

    #[test]
    fn a_name_that_is_no_feature_any_more_is_noticed() {
        let packages = json!({"packages": [{"name": "engine", "features": {}}]});
        assert_eq!(check(&packages).unwrap().len(), FOR_TESTS.len());
    }
}
